// Steps of sampling with logits of a test's own.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "metal/kernels/arguments.h"
#include "metal/sample_slots.h"
#include "metal/test_device.h"
#include "support/logits.h"

namespace calla::metal {

inline constexpr int sample_slots = 20;

using test::Logits;
using test::normal_logits;
using test::peaked_logits;

/// Steps of a backend that has logits from elsewhere.
class SampleRig {
 public:
  static constexpr int max_rows = sample_slots;
  static constexpr int slot_count = sample_slots;

  explicit SampleRig(const Shape& shape, bool checked = true)
      : vocabulary(shape.vocabulary),
        device(make_test_device({.shape = shape, .checked = checked, .seed = 11})),
        slots(*device, sample_slots, shape.vocabulary),
        states_(device->allocate(sample_slots * sizeof(SlotState), Hazards::tracked)),
        logits_(device->allocate(sample_slots * stride() * sizeof(float), Hazards::tracked)),
        peaks_(device->allocate(sample_slots * groups() * sizeof(Peak), Hazards::tracked)) {
    for (SlotState& state : states_->as<SlotState>()) state = {};
  }
  ~SampleRig() {
    for (const std::string& finding : device->findings()) ADD_FAILURE() << finding;
  }
  SampleRig(const SampleRig&) = delete;
  SampleRig& operator=(const SampleRig&) = delete;
  SampleRig(SampleRig&&) = delete;
  SampleRig& operator=(SampleRig&&) = delete;

  using SlotState = calla_kernels::SlotState;
  using Peak = calla_kernels::Peak;

  void set(int slot, const SamplingParams& params, std::span<const Token> prompt = {}) {
    slots.set(slot, params, prompt);
    state(slot).ended = 0;
    state(slot).draws = 0;
  }
  SlotState& state(int slot) const { return states_->as<SlotState>()[static_cast<std::size_t>(slot)]; }

  /// What the head leaves: a slot's logits and the peaks of its groups.
  void load(int slot, const Logits& row) const {
    constexpr std::size_t group = calla_kernels::head_rows;
    std::copy(row.begin(), row.end(), logits_->as<float>().begin() + at(slot, stride()));
    const auto peaks = peaks_->as<Peak>().subspan(static_cast<std::size_t>(slot) * groups(), groups());
    for (std::size_t g = 0; g < groups(); ++g) {
      const auto first = row.begin() + static_cast<std::ptrdiff_t>(g * group);
      const auto last = first + group;
      const auto is_bad = [](float logit) { return !std::isfinite(logit); };
      const auto bad = std::find_if(first, last, is_bad);
      const auto best = bad != last ? bad : std::max_element(first, last);
      peaks[g] = {bad != last ? std::nanf("") : *best, static_cast<unsigned>(best - row.begin())};
    }
  }
  /// A pass that draws for the rows; its step is the next one.
  std::unique_ptr<Pass> commit(const std::vector<int>& slot_of_row) {
    std::unique_ptr<Pass> pass = device->begin();
    slots.encode(*pass, slot_of_row, ++step, logits_, peaks_, states_);
    pass->commit();
    return pass;
  }

  /// A step whose rows have these logits.
  std::vector<DrawnRow> draw(const std::vector<const Logits*>& of_row, const std::vector<int>& slot_of_row) {
    for (std::size_t row = 0; row < of_row.size(); ++row) {
      if (slot_of_row[row] >= 0) load(slot_of_row[row], *of_row[row]);
    }
    commit(slot_of_row)->wait();
    std::vector<DrawnRow> result;
    for (std::size_t row = 0; row < of_row.size(); ++row) {
      result.push_back(slots.read(step, static_cast<int>(row)));
      const DrawnRow& drawn = result.back();
      if (!drawn.has_token) continue;
      EXPECT_EQ(drawn.sampled.slot, slot_of_row[row]) << "row " << row;
      const SlotState& after = state(slot_of_row[row]);
      EXPECT_EQ(after.ended, drawn.sampled.end ? 1U : 0U) << "row " << row;
      if (!drawn.sampled.end) {
        EXPECT_EQ(after.token, static_cast<unsigned>(drawn.sampled.token)) << "row " << row;
      }
    }
    return result;
  }
  DrawnRow draw(const Logits& row, int slot) {
    return draw(std::vector<const Logits*>{&row}, std::vector<int>{slot}).front();
  }

  int vocabulary;
  std::unique_ptr<TestDevice> device;
  SampleSlots slots;
  std::uint32_t step = 0;

  View states() const { return states_; }

 private:
  std::size_t stride() const { return static_cast<std::size_t>(vocabulary); }
  std::size_t groups() const { return stride() / calla_kernels::head_rows; }
  static std::ptrdiff_t at(int slot, std::size_t stride) {
    return static_cast<std::ptrdiff_t>(static_cast<std::size_t>(slot) * stride);
  }

  std::unique_ptr<Buffer> states_;
  std::unique_ptr<Buffer> logits_;
  std::unique_ptr<Buffer> peaks_;
};

}  // namespace calla::metal
