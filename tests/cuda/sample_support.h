// Steps of sampling with logits of a test's own.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/device.h"
#include "cuda/sample.h"
#include "cuda/sample_slots.h"
#include "support/logits.h"

namespace calla::cuda {

inline constexpr int sample_rows = 16;
inline constexpr int sample_slots = 20;

using test::Logits;
using test::normal_logits;
using test::peaked_logits;

/// Steps of a backend that has logits from elsewhere.
template <Shape S>
class SampleRig {
 public:
  static constexpr int max_rows = sample_rows;
  static constexpr int slot_count = sample_slots;
  static constexpr int vocabulary = S.vocabulary;

  SampleRig()
      : stream(make_stream()),
        slots(sample_slots, sample_rows, S.vocabulary),
        logits(std::size_t{sample_slots} * S.vocabulary),
        row_slots(sample_rows),
        tokens(sample_rows),
        active(sample_rows) {}

  SampleStep step() const {
    return slots.step(logits.data(), row_slots.data(), tokens.data(), active.data());
  }

  /// The rows' slots and their logits; other slots' are NaN.
  void load(const std::vector<const Logits*>& of_row, const std::vector<int>& slot_of_row) const {
    check(cudaMemset(logits.data(), 0xFF, logits.bytes()), "poisoning");
    for (std::size_t row = 0; row < of_row.size(); ++row) {
      if (slot_of_row[row] < 0) continue;
      upload(logits.data() + static_cast<std::size_t>(slot_of_row[row]) * S.vocabulary, of_row[row]->data(),
             S.vocabulary * sizeof(float));
    }
    upload(row_slots.data(), slot_of_row.data(), slot_of_row.size() * sizeof(int));
  }

  /// One step; the workspace holds NaN before it.
  std::vector<DrawnRow> draw(const std::vector<const Logits*>& of_row, const std::vector<int>& slot_of_row) {
    const int rows = static_cast<int>(of_row.size());
    load(of_row, slot_of_row);
    const SampleStep s = step();
    const std::size_t groups = std::size_t{sample_rows} * sample_groups(S.vocabulary);
    check(cudaMemset(s.peaks, 0xFF, 4 * groups * sizeof(float)), "poisoning");
    check(cudaMemset(s.adjusted, 0xFF, std::size_t{sample_rows} * S.vocabulary * sizeof(float)), "poisoning");
    check(cudaMemset(tokens.data(), 0xFF, tokens.bytes()), "poisoning");
    check(cudaMemset(active.data(), 0xFF, active.bytes()), "poisoning");
    check(cudaDeviceSynchronize(), "poisoning");
    launch_sample<S>(s, rows, stream.get());
    ++steps;
    check(cudaStreamSynchronize(stream.get()), "sampling");
    std::vector<DrawnRow> result;
    for (int row = 0; row < rows; ++row) {
      const auto drawn = slots.read(steps, row);
      EXPECT_TRUE(drawn.has_value()) << "row " << row;
      result.push_back(drawn.value_or(DrawnRow{}));
      const bool appended = result.back().has_token && !result.back().sampled.end;
      EXPECT_EQ(get(active, row), appended ? 1 : 0) << "row " << row;
      EXPECT_EQ(get(tokens, row), appended ? result.back().sampled.token : 0) << "row " << row;
    }
    return result;
  }
  DrawnRow draw(const Logits& row, int slot) { return draw({&row}, {slot}).front(); }

  void set(int slot, const SamplingParams& params, std::span<const Token> prompt = {}) {
    slots.set(slot, params, prompt, stream.get());
  }

  int get(const DeviceArray<int>& array, int index) const { return value(array.data() + index); }
  int position(int slot) const { return value(slots.positions() + slot); }

  Stream stream;
  SampleSlots slots;
  DeviceArray<float> logits;
  DeviceArray<int> row_slots;
  DeviceArray<int> tokens;
  DeviceArray<int> active;
  std::uint32_t steps = 0;

 private:
  static int value(const int* at) {
    int result = 0;
    download(&result, at, sizeof(result));
    return result;
  }
};

}  // namespace calla::cuda
