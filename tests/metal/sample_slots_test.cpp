#include "metal/sample_slots.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "base/error.h"
#include "metal/kernels/decode_grids.h"
#include "metal/recorder.h"
#include "metal/sample_support.h"
#include "model/sampler.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(MetalSampleSlots, AnEndTokenEndsTheSlot) {
  SampleRig rig(demo);
  Logits logits = normal_logits(demo.vocabulary, 1, 10);
  logits[77] = 20;
  Logits ending = logits;
  ending[99] = 30;
  for (const float penalty : {0.0F, 0.5F}) {
    rig.set(4, {.temperature = 0, .frequency_penalty = penalty, .end_tokens = {3, 99, 500}});
    EXPECT_EQ(rig.draw(logits, 4).sampled.token, 77);
    EXPECT_EQ(rig.state(4).draws, 1U);
    const DrawnRow end = rig.draw(ending, 4);
    EXPECT_TRUE(end.has_token);
    EXPECT_TRUE(end.sampled.end);
    EXPECT_EQ(end.sampled.token, 99);
    EXPECT_EQ(rig.state(4).token, 77U);
    EXPECT_EQ(rig.state(4).draws, 2U);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(rig.draw(logits, 4).has_token);
    EXPECT_EQ(rig.state(4).draws, 2U);
    rig.state(4).ended = 0;
    EXPECT_EQ(rig.draw(logits, 4).sampled.token, 77);
  }
}

TEST(MetalSampleSlots, RowsWithoutASlotGiveNothing) {
  SampleRig rig(demo);
  const Logits logits = peaked_logits(demo.vocabulary, 11);
  for (const int rows : {1, 2, 4, 17}) {
    std::vector<int> slot_of_row;
    const auto params = [](int row) {
      return SamplingParams{.temperature = 1, .top_k = 20, .seed = static_cast<std::uint64_t>(row)};
    };
    for (int row = 0; row < rows; ++row) {
      slot_of_row.push_back(row % 3 == 1 ? -1 : sample_slots - 1 - row);
      if (slot_of_row.back() >= 0) rig.set(slot_of_row.back(), params(row));
    }
    const auto drawn =
        rig.draw(std::vector<const Logits*>(static_cast<std::size_t>(rows), &logits), slot_of_row);
    for (int row = 0; row < rows; ++row) {
      const auto& result = drawn[static_cast<std::size_t>(row)];
      EXPECT_EQ(result.has_token, row % 3 != 1);
      if (!result.has_token) continue;
      EXPECT_EQ(result.sampled.token, Sampler(params(row), {}).draw(logits).token) << rows << ", " << row;
    }
  }
}

TEST(MetalSampleSlots, ALogitThatIsNotFiniteIsAFault) {
  for (const float bad : {std::nanf(""), -std::nanf(""), infinity, -infinity}) {
    for (const std::size_t at : {std::size_t{1234}, std::size_t{2559}}) {
      SampleRig rig(demo);
      const Logits good = normal_logits(demo.vocabulary, 1, 12);
      Logits logits = good;
      logits[at] = bad;
      const std::vector<SamplingParams> all{{.temperature = 0},
                                            {.temperature = 1, .top_k = 20},
                                            {.temperature = 1},
                                            {.temperature = 0, .vocabulary = 2500, .top_logprobs = 3}};
      for (std::size_t i = 0; i < all.size(); ++i) {
        rig.set(0, all[i]);
        rig.set(1, all[i]);
        const auto drawn = rig.draw({&logits, &good}, {0, 1});
        EXPECT_TRUE(drawn[0].fault) << i;
        EXPECT_FALSE(drawn[0].has_token) << i;
        EXPECT_EQ(rig.state(0).ended, 1U) << i;
        EXPECT_FALSE(drawn[1].fault) << i;
        EXPECT_TRUE(drawn[1].has_token) << i;
      }
    }
  }
}

// What tells kernels that look at peaks alone of such a logit.
TEST(MetalSampleSlots, TheHeadMarksLogitsThatAreNotFinite) {
  const auto device = make_test_device({.shape = demo});
  const auto hidden = static_cast<std::size_t>(demo.hidden);
  const auto vocabulary = static_cast<std::size_t>(demo.vocabulary);
  const auto zeros = [&](std::size_t bytes) {
    auto buffer = device->allocate(bytes, Hazards::tracked);
    std::memset(buffer->bytes().data(), 0, bytes);
    return buffer;
  };
  const auto words = zeros(vocabulary * hidden / 2);
  const auto scales = zeros(vocabulary * hidden / 64 * sizeof(std::uint16_t));
  const auto biases = zeros(vocabulary * hidden / 64 * sizeof(std::uint16_t));
  const auto u = zeros(hidden * sizeof(float));
  const auto square_sums = zeros(hidden / square_columns * sizeof(float));
  const auto logits = zeros(vocabulary * sizeof(float));
  const auto peaks = zeros(vocabulary / head_rows * sizeof(Peak));
  const auto states = zeros(sizeof(SlotState));
  std::fill(u->as<float>().begin(), u->as<float>().end(), 1.0F);
  constexpr std::size_t bad = 1234;
  const auto head = device->pipeline("head_1", head_threads);
  for (const int value : {0x7FC0, 0xFFC0, 0x7F80, 0xFF80}) {  // NaN and infinity, of both signs
    biases->as<std::uint16_t>()[bad * hidden / 64] = static_cast<std::uint16_t>(value);
    const auto pass = device->begin();
    pass->dispatch(*head,
                   {View(words), View(scales), View(biases), View(u), View(square_sums), View(logits),
                    View(peaks), View(states), constants(StepRows{{0, no_slot, no_slot, no_slot}})},
                   {static_cast<std::uint32_t>(vocabulary / head_rows)});
    pass->commit();
    pass->wait();
    for (std::size_t i = 0; i < vocabulary; ++i)
      EXPECT_EQ(std::isfinite(logits->as<float>()[i]), i != bad) << i;
    for (std::size_t group = 0; group < vocabulary / head_rows; ++group)
      EXPECT_EQ(std::isfinite(peaks->as<Peak>()[group].logit), group != bad / head_rows) << group;
  }
}

// A row's record is the same to the bit, alone and among others, whatever order the threads run in.
TEST(MetalSampleSlots, ARowDoesNotDependOnOthersOrOnChance) {
  SampleRig rig(demo);
  const Logits logits = normal_logits(demo.vocabulary, 3.0F, 13);
  std::vector<SamplingParams> all{{.temperature = 0},
                                  {.temperature = 1},
                                  {.temperature = 1, .top_k = 20, .top_p = 0.95F},
                                  {.temperature = 1, .top_p = 0.999F},
                                  {.temperature = 1, .top_k = 700},
                                  {.temperature = 1, .min_p = 0.01F, .presence_penalty = 1}};
  std::vector<int> slot_of_row;
  for (SamplingParams& params : all) {
    params.seed = 40 + slot_of_row.size();
    params.top_logprobs = slot_of_row.size() % 2 == 0 ? -1 : 20;
    slot_of_row.push_back(static_cast<int>(slot_of_row.size()));
  }
  const auto set_all = [&] {
    for (std::size_t row = 0; row < all.size(); ++row) rig.set(slot_of_row[row], all[row]);
  };
  const auto same = [](const DrawnRow& a, const DrawnRow& b) {
    const auto& x = a.sampled.top_logprobs;
    const auto& y = b.sampled.top_logprobs;
    return a.has_token && b.has_token && a.sampled.token == b.sampled.token &&
           a.sampled.logprob == b.sampled.logprob &&
           std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [](const TokenLogprob& p, const TokenLogprob& q) {
                        return p.token == q.token && p.logprob == q.logprob;
                      });
  };
  const std::vector<const Logits*> of_row(all.size(), &logits);
  set_all();
  const auto first = rig.draw(of_row, slot_of_row);
  for (int again = 0; again < 3; ++again) {
    set_all();
    const auto drawn = rig.draw(of_row, slot_of_row);
    for (std::size_t row = 0; row < all.size(); ++row) EXPECT_TRUE(same(drawn[row], first[row])) << row;
  }
  set_all();
  for (std::size_t row = 0; row < all.size(); ++row)
    EXPECT_TRUE(same(rig.draw(logits, slot_of_row[row]), first[row])) << row;
}

// The host commits a step before it has read the one before.
TEST(MetalSampleSlots, RecordsStayUntilFourMoreStepsAreEncoded) {
  SampleRig rig(demo);
  const Logits logits = peaked_logits(demo.vocabulary, 15);
  const SamplingParams params{.temperature = 1, .seed = 9, .top_logprobs = 2};
  rig.set(6, params);
  rig.load(6, logits);
  std::vector<std::unique_ptr<Pass>> passes;
  for (unsigned i = 0; i < record_steps; ++i) passes.push_back(rig.commit({-1, 6}));
  for (const auto& pass : passes) pass->wait();
  Sampler host(params, {});
  for (std::uint32_t step = 1; step <= record_steps; ++step) {
    EXPECT_FALSE(rig.slots.read(step, 0).has_token);
    const SampledToken expected = host.draw(logits);
    const SampledToken drawn = rig.slots.read(step, 1).sampled;
    EXPECT_EQ(drawn.token, expected.token);
    EXPECT_NEAR(drawn.logprob, expected.logprob, 2e-6);
  }
}

TEST(MetalSampleSlots, TakesTheLevelsThatItSays) {
  RecordingDevice device;
  SampleSlots slots(device, 20, demo.vocabulary);
  const auto memory = device.allocate(std::size_t{1} << 20, Hazards::tracked);
  const auto expect = [&](const std::vector<int>& rows, int levels, std::size_t dispatches) {
    device.forget();
    const auto pass = device.begin();
    slots.encode(*pass, rows, 1, memory, memory, memory);
    pass->commit();
    EXPECT_EQ(device.passes().front().levels, levels);
    EXPECT_EQ(device.passes().front().dispatches.size(), dispatches);
    EXPECT_EQ(slots.levels(rows), levels);
  };
  for (int slot = 0; slot < 20; ++slot) slots.set(slot, {.temperature = 0}, {});
  slots.set(1, {.temperature = 1, .top_k = 20, .top_p = 0.95F}, {});
  slots.set(2, {.temperature = 1}, {});
  slots.set(3, {.temperature = 0, .top_logprobs = 0}, {});
  expect({}, 0, 0);
  expect({-1}, 0, 0);
  expect({0, 5, -1}, 1, 1);
  expect({0, 1}, 1, 1);
  expect({1, 2}, 2, 2);
  expect({0, 3, 2}, 2, 3);
  expect({0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}, 1, 2);
}

TEST(MetalSampleSlots, TooManyEndTokensAreRefused) {
  RecordingDevice device;
  SampleSlots slots(device, 1, demo.vocabulary);
  EXPECT_THROW(slots.set(0, {.end_tokens = std::vector<Token>(17, 1)}, {}), Error);
}

TEST(MetalSampleSlots, PositionsAdvanceWhereASlotIsLive) {
  SampleRig rig(demo);
  const auto advance = rig.device->pipeline("advance", advance_threads);
  const auto place = rig.device->pipeline("place_slot", advance_threads);
  rig.state(9) = {.position = 100, .token = 1, .ended = 1, .draws = 6};
  rig.state(2) = {.position = 7, .token = 2, .ended = 1, .draws = 5};
  const auto pass = rig.device->begin();
  pass->dispatch(*place, {rig.states(), constants(PlaceArguments{9, 50, 70})}, {});
  pass->barrier();
  pass->dispatch(*advance, {rig.states(), constants(StepRows{{0, 2, no_slot, 9}})}, {});
  pass->commit();
  pass->wait();
  EXPECT_EQ(rig.state(0).position, 1U);
  EXPECT_EQ(rig.state(1).position, 0U);
  EXPECT_EQ(rig.state(2).position, 7U);
  EXPECT_EQ(rig.state(9).position, 51U);
  EXPECT_EQ(rig.state(9).token, 70U);
  EXPECT_EQ(rig.state(9).ended, 0U);
  EXPECT_EQ(rig.state(9).draws, 6U);
}

}  // namespace
}  // namespace calla::metal
