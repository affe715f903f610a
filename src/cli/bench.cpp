// calla bench: prefill and decode at several context lengths, beside what the machine can do.
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/backends.h"
#include "cli/bench_beside.h"
#include "cli/bench_measure.h"
#include "cli/bench_plot.h"
#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/open.h"
#include "cli/processor.h"
#include "cli/terminal.h"

namespace calla::cli {
namespace {

constexpr int shortest_context = 256;
constexpr int longest_context = 131072;

/// The slots and positions that a context takes, planned.
MemoryPlan plan_for(const BenchFlags& flags, const ModelWeights& model, int context) {
  return plan_backend(flags.model, model.config.shape, model.weights.bytes, flags.batch,
                      positions_for(context, flags.steps));
}

/// Throws Error, which names the context, when the model or the memory has no room for it.
void require_room(const BenchFlags& flags, const ModelWeights& model, int context) {
  const int positions = positions_for(context, flags.steps);
  if (positions > model.config.context) {
    throw Error(fmt::format("context {}", context),
                fmt::format("takes {} positions with the steps behind it, and the model knows {}", positions,
                            model.config.context),
                "choose smaller --contexts or fewer --steps");
  }
  const std::uint64_t needed = plan_for(flags, model, context).total();
  if (const auto available = available_memory(flags.model); available && needed > *available) {
    throw Error(fmt::format("context {}", context),
                fmt::format("takes {} of memory, and {} are available", format_bytes(needed),
                            format_bytes(*available)),
                "choose smaller --contexts or a smaller --batch");
  }
}

std::vector<int> choose_contexts(const BenchFlags& flags, const ModelWeights& model) {
  std::vector<int> contexts = flags.contexts;
  if (!contexts.empty()) {
    std::sort(contexts.begin(), contexts.end());
    contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
    for (const int context : contexts) require_room(flags, model, context);
    return contexts;
  }
  require_room(flags, model, shortest_context);
  const auto available = available_memory(flags.model);
  for (int context = shortest_context; context <= longest_context; context *= 2) {
    if (positions_for(context, flags.steps) > model.config.context) break;
    if (available && plan_for(flags, model, context).total() > *available) break;
    contexts.push_back(context);
  }
  return contexts;
}

BenchReport describe(const BenchFlags& flags, const ModelWeights& model) {
  ProgressBar bar("Measuring the machine");
  BenchReport report;
  report.processor = processor_name();
  report.processor_threads = static_cast<int>(std::thread::hardware_concurrency());
  report.threads = thread_count(flags.model);
  bar.draw(0, 2, "reads");
  report.read_bandwidth = read_bandwidth(flags.model);
  bar.draw(1, 2, "products");
  report.product_peak = product_peak(flags.model);
  report.products = product_name(flags.model);
  report.model = model_title(model);
  report.weight_bytes = model.weights.bytes;
  report.steps = flags.steps;
  report.rounds = flags.rounds;
  report.batch = flags.batch;
  return report;
}

void measure_all(Backend& backend, const Shape& shape, const std::vector<int>& contexts,
                 BenchReport& report) {
  std::vector<Workload> workloads;
  std::uint64_t total = 0;
  for (const int context : contexts) {
    workloads.push_back({.context = context,
                         .steps = report.steps,
                         .rounds = report.rounds,
                         .batch = report.batch,
                         .vocabulary = shape.vocabulary});
    total += progress_total(workloads.back());
  }
  ProgressBar bar("Measuring");
  std::uint64_t done = 0;
  for (const Workload& workload : workloads) {
    const std::string note = fmt::format("context {}", workload.context);
    BenchRow row{.context = workload.context,
                 .rounds = {},
                 .prefill_operations = prefill_operations(shape, workload.context),
                 .decode_bytes = decode_bytes(shape, report.batch, workload.context)};
    row.rounds = measure(backend, workload, [&](int tokens) {
      done += static_cast<std::uint64_t>(tokens);
      bar.draw(done, total, note);
    });
    report.rows.push_back(std::move(row));
  }
}

void write(const std::string& file, std::string_view text) {
  if (file == "-") {
    put(STDOUT_FILENO, text);
    return;
  }
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw Error(file, "cannot be written", "check that the folder exists and the disk has room");
}

}  // namespace

void bench(const BenchFlags& flags) {
  const ModelWeights model = find_weights(flags.model, model_directory(flags.model));
  const std::vector<int> contexts = choose_contexts(flags, model);
  std::vector<OtherSpeeds> beside;
  for (const std::string& file : flags.beside_files) beside.push_back(read_other_speeds(file));
  BenchReport report = describe(flags, model);
  const std::unique_ptr<Backend> backend =
      load_backend(flags.model, model, plan_for(flags, model, contexts.back()));
  report.device = backend->device();
  measure_all(*backend, model.config.shape, contexts, report);
  report.memory = process_memory();

  if (flags.json_file != "-" && flags.csv_file != "-") put(STDOUT_FILENO, bench_table(report));
  if (!flags.json_file.empty()) write(flags.json_file, bench_json(report).dump(2) + "\n");
  if (!flags.csv_file.empty()) write(flags.csv_file, bench_csv(report));
  if (!flags.plot_file.empty()) write(flags.plot_file, bench_plot(report, beside));
  for (const BenchRow& row : report.rows) {
    if (!repeats(row)) {
      throw Error(fmt::format("context {}", row.context), "the rounds decoded different tokens",
                  "the backend is at fault, or the machine's memory");
    }
  }
}

}  // namespace calla::cli
