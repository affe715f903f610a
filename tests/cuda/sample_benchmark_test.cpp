// What a step of sampling costs.
#include <algorithm>

#include <fmt/format.h>

#include "cuda/sample_support.h"

namespace calla::cuda {
namespace {

/// Microseconds of a step, of many in a graph.
double step_time(SampleRig<qwen36_35b>& rig, int rows) {
  constexpr int steps = 20;
  check(cudaStreamSynchronize(rig.stream.get()), "setting");
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(rig.stream.get(), cudaStreamCaptureModeThreadLocal), "capturing");
  for (int i = 0; i < steps; ++i) launch_sample<qwen36_35b>(rig.step(), rows, rig.stream.get());
  check(cudaStreamEndCapture(rig.stream.get(), &graph), "capturing");
  cudaGraphExec_t instance = nullptr;
  check(cudaGraphInstantiate(&instance, graph, 0), "making the graph");
  const GraphExec exec(instance);
  check(cudaGraphDestroy(graph), "dropping the graph");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "timing");
  check(cudaEventCreate(&end), "timing");
  std::vector<float> times;
  for (int run = 0; run < 21; ++run) {
    check(cudaEventRecord(begin, rig.stream.get()), "timing");
    check(cudaGraphLaunch(exec.get(), rig.stream.get()), "timing");
    check(cudaEventRecord(end, rig.stream.get()), "timing");
    check(cudaStreamSynchronize(rig.stream.get()), "timing");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "timing");
    times.push_back(milliseconds);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10] * 1000 / steps;
}

TEST(CudaSampleBenchmark, StepTimes) {
  SampleRig<qwen36_35b> rig;
  struct Case {
    const char* what;
    SamplingParams params;
  };
  const Case cases[] = {
      {"greedy", {.temperature = 0}},
      {"top-k 20, top-p 0.95", {.top_k = 20, .top_p = 0.95F}},
      {"top-k 20, presence penalty", {.top_k = 20, .presence_penalty = 1.5F}},
      {"top-k 20, 20 logprobs", {.top_k = 20, .top_logprobs = 20}},
      {"temperature alone", {}},
      {"top-p 0.95", {.top_p = 0.95F}},
      {"min-p 0.05", {.min_p = 0.05F}},
      {"top-k 300", {.top_k = 300}},
      {"top-k 1000", {.top_k = 1000}},
      {"top-k 1000, top-p 0.9", {.top_k = 1000, .top_p = 0.9F}},
  };
  std::vector<int> slot_of_row;
  for (int row = 0; row < sample_rows; ++row) slot_of_row.push_back(row);
  upload(rig.row_slots.data(), slot_of_row.data(), slot_of_row.size() * sizeof(int));
  for (const auto& [kind, logits] :
       {std::pair<const char*, Logits>{"peaked", peaked_logits(qwen36_35b.vocabulary, 1)},
        {"normal, deviation 2", normal_logits(qwen36_35b.vocabulary, 2.0F, 2)}}) {
    for (int row = 0; row < sample_rows; ++row) {
      upload(rig.logits.data() + static_cast<std::size_t>(row) * qwen36_35b.vocabulary, logits.data(),
             logits.size() * sizeof(float));
    }
    fmt::print("us a step, {:22} 1 row   4 rows  16 rows\n", kind);
    for (const Case& one : cases) {
      fmt::print("  {:32}", one.what);
      for (const int rows : {1, 4, 16}) {
        for (int row = 0; row < rows; ++row) {
          SamplingParams params = one.params;
          params.seed = static_cast<std::uint64_t>(row);
          rig.set(row, params);
        }
        fmt::print("{:8.2f}", step_time(rig, rows));
      }
      fmt::print("\n");
    }
  }
}

}  // namespace
}  // namespace calla::cuda
