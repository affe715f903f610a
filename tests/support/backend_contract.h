// What every backend must do, as tests: a room's test source includes this and instantiates it with
//
//   INSTANTIATE_TEST_SUITE_P(Reference, BackendContract, testing::Values(BackendMaker{...}));
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/backend.h"
#include "support/demo.h"

namespace calla::test {

/// Makes a backend of the demonstration model, or of its first layers.
using BackendMaker =
    std::function<std::unique_ptr<Backend>(const Shape& shape, Weights weights, int slots, int context)>;

inline const std::vector<Token>& prompt() {
  static const std::vector<Token> tokens{2421, 308, 256, 198, 901, 2422, 198,
                                         2421, 64,  318, 328, 198, 2444, 198};
  return tokens;
}

/// A prompt of some length, of no meaning.
inline std::vector<Token> long_prompt(int length) {
  std::vector<Token> tokens;
  for (int i = 0; i < length; ++i)
    tokens.push_back(static_cast<Token>(static_cast<std::uint32_t>(i) * 2654435761U % 2400));
  return tokens;
}

inline void begin(Backend& backend, int slot, std::span<const Token> tokens,
                  const SamplingParams& params = {.temperature = 0}) {
  backend.reset(slot);
  backend.set_sampling(slot, params, tokens);
  backend.prefill(slot, tokens, true);
}

inline std::vector<Token> decode(Backend& backend, int slot, int count) {
  std::vector<Token> tokens;
  for (int i = 0; i < count; ++i) {
    backend.submit(std::array{slot});
    for (const SampledToken& token : backend.collect()) tokens.push_back(token.token);
  }
  return tokens;
}

/// The logits after each of some tokens.
inline std::vector<std::vector<float>> scores(Backend& backend, int slot, std::span<const Token> tokens) {
  std::vector<std::vector<float>> rows;
  backend.score(slot, tokens, [&](std::size_t, std::span<const float> logits) {
    rows.emplace_back(logits.begin(), logits.end());
  });
  return rows;
}

/// Slots give the same tokens together as alone, and the logits after them are the same to the bit. `start`
/// begins a slot's sequence; each of `counts` is how many slots run together, in an order that is not theirs.
inline void expect_batch_as_alone(Backend& backend, std::span<const int> counts,
                                  const std::function<void(int slot)>& start) {
  constexpr int steps = 5;
  const std::array<Token, 1> probe{17};
  std::vector<std::vector<Token>> alone;
  std::vector<std::vector<float>> logits;
  for (int slot = 0; slot < *std::max_element(counts.begin(), counts.end()); ++slot) {
    start(slot);
    alone.push_back(decode(backend, slot, steps));
    logits.push_back(scores(backend, slot, probe)[0]);
  }
  for (const int count : counts) {
    std::vector<int> order;
    for (int slot = 0; slot < count; ++slot) {
      start(slot);
      order.insert(order.begin() + slot / 2, slot);
    }
    std::vector<std::vector<Token>> together(static_cast<std::size_t>(count));
    // Two steps are on their way at any time.
    backend.submit(order);
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) backend.submit(order);
      for (const SampledToken& token : backend.collect())
        together.at(static_cast<std::size_t>(token.slot)).push_back(token.token);
    }
    for (int slot = 0; slot < count; ++slot) {
      const auto at = static_cast<std::size_t>(slot);
      EXPECT_EQ(together[at], alone[at]) << "slot " << slot << " of " << count;
      EXPECT_EQ(scores(backend, slot, probe)[0], logits[at]) << "slot " << slot << " of " << count;
    }
  }
}

class BackendContract : public testing::TestWithParam<BackendMaker> {
 protected:
  static std::unique_ptr<Backend> backend(int slots = 2, int context = 256) {
    return GetParam()(demo, demo_weights(), slots, context);
  }
};

TEST_P(BackendContract, PositionsCountEveryToken) {
  const auto b = backend();
  begin(*b, 0, prompt());
  EXPECT_EQ(b->position(0), 14);
  EXPECT_EQ(b->position(1), 0);
  decode(*b, 0, 3);
  EXPECT_EQ(b->position(0), 17);
  b->reset(0);
  EXPECT_EQ(b->position(0), 0);
}

TEST_P(BackendContract, PrefillInPiecesGivesTheSameTokens) {
  const auto b = backend();
  begin(*b, 0, prompt());
  b->reset(1);
  b->set_sampling(1, {.temperature = 0}, prompt());
  b->prefill(1, std::span(prompt()).first(5), false);
  b->prefill(1, std::span(prompt()).subspan(5), true);
  EXPECT_EQ(decode(*b, 0, 12), decode(*b, 1, 12));
}

TEST_P(BackendContract, SlotsInABatchAreAsAlone) {
  const auto b = backend();
  const std::vector<Token> other{2421, 308, 256, 198, 64, 318};
  expect_batch_as_alone(*b, std::array{2}, [&](int slot) { begin(*b, slot, slot == 0 ? prompt() : other); });
}

TEST_P(BackendContract, AnEndedSlotStaysAsItIs) {
  const auto b = backend();
  begin(*b, 0, prompt());
  const auto tokens = decode(*b, 0, 4);
  begin(*b, 0, prompt(), {.temperature = 0, .end_tokens = {tokens[2]}});
  std::vector<SampledToken> sampled;
  for (int i = 0; i < 5; ++i) b->submit(std::array{0});
  for (int i = 0; i < 5; ++i) {
    for (SampledToken& token : b->collect()) sampled.push_back(std::move(token));
  }
  ASSERT_EQ(sampled.size(), 3U);
  EXPECT_TRUE(sampled[2].end);
  EXPECT_EQ(b->position(0), 16) << "the end token is not part of the sequence";
  b->set_sampling(0, {.temperature = 0}, prompt());
  EXPECT_EQ(decode(*b, 0, 2), std::vector<Token>({tokens[2], tokens[3]})) << "its logits stay, too";
}

TEST_P(BackendContract, WhatIsNotANumberIsTheFaultOfItsSlot) {
  const std::vector<Token> other{2421, 308, 256, 198, 64, 318};
  const auto sound = backend();
  begin(*sound, 0, prompt());
  const std::vector<Token> drawn = decode(*sound, 0, 2);
  begin(*sound, 1, other);
  const std::vector<Token> expected = decode(*sound, 1, 5);
  ASSERT_EQ(std::find(expected.begin(), expected.end(), drawn[1]), expected.end());

  // The second token that slot 0 draws has a row of numbers that are none.
  Weights weights = demo_weights();
  std::vector<std::byte> scales(weights.embedding.scales.begin(), weights.embedding.scales.end());
  const std::size_t row_bytes = scales.size() / static_cast<std::size_t>(weights.embedding.rows);
  std::fill_n(scales.begin() + static_cast<std::ptrdiff_t>(row_bytes) * drawn[1], row_bytes, std::byte{0xFF});
  weights.embedding.scales = scales;
  const auto b = GetParam()(demo, weights, 2, 256);
  begin(*b, 0, prompt());
  begin(*b, 1, other);
  std::array<std::vector<Token>, 2> tokens;
  std::vector<std::string> faults;
  b->submit(std::array{0, 1});
  for (int step = 0; step < 5; ++step) {
    if (step < 4) b->submit(std::array{0, 1});
    for (const SampledToken& token : b->collect()) {
      if (token.fault.empty()) {
        tokens.at(static_cast<std::size_t>(token.slot)).push_back(token.token);
      } else {
        EXPECT_EQ(token.slot, 0);
        faults.push_back(token.fault);
      }
    }
  }
  EXPECT_EQ(tokens[0], drawn) << "up to the damage";
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_NE(faults[0].find("not a number"), std::string::npos) << faults[0];
  EXPECT_EQ(tokens[1], expected);
  begin(*b, 0, other);
  EXPECT_EQ(decode(*b, 0, 5), expected) << "the slot serves the next one";
}

TEST_P(BackendContract, ASnapshotGoesOnInAnySlot) {
  const auto b = backend();
  begin(*b, 0, prompt());
  decode(*b, 0, 3);
  const auto snapshot = b->snapshot(0);
  EXPECT_EQ(snapshot->position(), 17);
  EXPECT_GE(snapshot->bytes(), 4U * 6 * (8 * 128 * 128 + 3 * 2048)) << "the recurrent state";
  const auto expected = decode(*b, 0, 8);
  b->set_sampling(1, {.temperature = 0}, prompt());
  b->restore(1, *snapshot);
  EXPECT_EQ(decode(*b, 1, 8), expected);
  b->restore(0, *snapshot);
  EXPECT_EQ(decode(*b, 0, 8), expected) << "the snapshot is not used up";
}

TEST_P(BackendContract, ScoreShowsTheLogitsThatDecodingDrawsFrom) {
  const auto b = backend();
  begin(*b, 0, prompt());
  const auto tokens = decode(*b, 0, 6);
  std::vector<Token> text = prompt();
  text.insert(text.end(), tokens.begin(), tokens.end());
  b->reset(1);
  std::size_t visited = 0;
  b->score(1, text, [&](std::size_t index, std::span<const float> logits) {
    EXPECT_EQ(index, visited++);
    ASSERT_EQ(logits.size(), 2560U);
    if (index + 1 < prompt().size() || index + 1 == text.size()) return;
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), text[index + 1]);
  });
  EXPECT_EQ(visited, text.size());
  EXPECT_EQ(b->position(1), static_cast<int>(text.size()));
}

TEST_P(BackendContract, RunsTheFirstLayersAlone) {
  Shape cut = demo;
  cut.layers = 3;
  Weights weights = demo_weights();
  weights.layers.resize(3);
  const auto few = GetParam()(cut, weights, 1, 256);
  begin(*few, 0, prompt());
  const std::vector<Token> first = decode(*few, 0, 4);
  begin(*few, 0, prompt());
  EXPECT_EQ(decode(*few, 0, 4), first) << "a reset gives the state of as many layers";

  const auto whole = backend();
  begin(*whole, 0, prompt());
  EXPECT_NE(decode(*whole, 0, 4), first);
  EXPECT_LT(few->memory().kv_cache, whole->memory().kv_cache);
  EXPECT_EQ(few->memory().kv_cache, 0U) << "the first three layers have no attention";
}

TEST_P(BackendContract, AbandonedStepsAreForgotten) {
  const auto b = backend();
  begin(*b, 0, prompt());
  const std::vector<Token> expected = decode(*b, 0, 3);
  begin(*b, 0, prompt());
  b->submit(std::array{0});
  b->submit(std::array{0});
  b->abandon();
  begin(*b, 0, prompt());
  EXPECT_EQ(decode(*b, 0, 3), expected);
}

TEST_P(BackendContract, ALongPromptIsTheSumOfItsPieces) {
  const auto b = backend();
  const std::vector<Token> tokens = long_prompt(120);
  begin(*b, 0, tokens);
  b->reset(1);
  b->set_sampling(1, {.temperature = 0}, tokens);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t piece = std::min<std::size_t>(done % 2 == 0 ? 33 : 6, tokens.size() - done);
    b->prefill(1, std::span(tokens).subspan(done, piece), done + piece == tokens.size());
    done += piece;
  }
  EXPECT_EQ(b->position(0), 120);
  EXPECT_EQ(decode(*b, 0, 4), decode(*b, 1, 4));
}

/// The prefix cache stands on this: the state at a cut is the same to the bit whatever the pieces before it
/// and whatever follows, and so are the logits at the end.
TEST_P(BackendContract, CutsAtTheGrainChangeNoBit) {
  const auto b = backend(2, 1400);
  const int grain = b->prefill_grain();
  ASSERT_LE(2 * grain, b->prefill_chunk());
  ASSERT_EQ(b->prefill_chunk() % grain, 0);
  const int length = std::min(b->prefill_chunk() + 3 * grain - 1, 1200);
  const std::vector<Token> tokens = long_prompt(length);
  const std::vector<Token> probe{17, 18};
  const auto final_logits = [&](const std::vector<int>& grains) {
    b->reset(1);
    b->set_sampling(1, {.temperature = 0}, tokens);
    std::size_t done = 0;
    for (std::size_t i = 0; length - static_cast<int>(done) >= 2 * grain; ++i) {
      const int most = (length - static_cast<int>(done)) / grain - 1;
      const auto piece = static_cast<std::size_t>(std::min(grains[i % grains.size()], most) * grain);
      b->prefill(1, std::span(tokens).subspan(done, piece), false);
      done += piece;
    }
    b->prefill(1, std::span(tokens).subspan(done), true);
    EXPECT_EQ(b->position(1), length);
    return scores(*b, 1, probe);
  };
  begin(*b, 0, tokens);
  const auto whole = scores(*b, 0, probe);
  const int chunk = b->prefill_chunk() / grain;
  EXPECT_EQ(final_logits({1}), whole);
  EXPECT_EQ(final_logits({chunk}), whole);
  EXPECT_EQ(final_logits({3, 1, std::max(1, chunk - 1), 2}), whole);

  // A snapshot at a cut of a shorter sequence serves a longer one.
  b->reset(0);
  b->prefill(0, std::span(tokens).first(static_cast<std::size_t>(grain)), false);
  b->prefill(0, std::span(tokens).subspan(static_cast<std::size_t>(grain), static_cast<std::size_t>(grain)),
             true);
  const auto snapshot = b->snapshot(0);
  b->reset(1);
  b->set_sampling(1, {.temperature = 0}, tokens);
  b->restore(1, *snapshot);
  b->prefill(1, std::span(tokens).subspan(static_cast<std::size_t>(2 * grain)), true);
  EXPECT_EQ(scores(*b, 1, probe), whole);
}

TEST_P(BackendContract, SnapshotsComeBackFromAStream) {
  const auto b = backend(2, 1400);
  const int middle = std::min(b->prefill_chunk(), 512) + b->prefill_grain();
  const int end = middle + 2 * b->prefill_grain();
  const std::vector<Token> tokens = long_prompt(end);
  const auto snapshot_at = [&](int from, int to) {
    b->prefill(0,
               std::span(tokens).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)),
               true);
    return b->snapshot(0);
  };
  b->reset(0);
  b->set_sampling(0, {.temperature = 0}, {});
  const auto first = snapshot_at(0, middle);
  const auto second = snapshot_at(middle, end);
  const std::vector<Token> expected = decode(*b, 0, 5);

  std::stringstream whole;
  first->save(whole, 0);
  std::stringstream more;
  second->save(more, middle);
  // What is shared is in the first alone.
  const auto held = first->memory();
  const auto is_shared = [&](const MemoryPiece& piece) {
    return std::any_of(held.begin(), held.end(),
                       [&](const MemoryPiece& p) { return p.identity == piece.identity; });
  };
  const auto pieces = second->memory();
  EXPECT_LE(more.str().size(), whole.str().size());
  if (std::any_of(pieces.begin(), pieces.end(), is_shared)) {
    EXPECT_LT(more.str().size(), whole.str().size());
  }
  const auto loaded_first = b->load_snapshot(whole, nullptr);
  EXPECT_EQ(loaded_first->position(), middle);
  EXPECT_EQ(loaded_first->bytes(), first->bytes());
  const auto loaded = b->load_snapshot(more, loaded_first.get());
  EXPECT_EQ(loaded->position(), end);
  b->set_sampling(1, {.temperature = 0}, {});
  b->restore(1, *loaded);
  EXPECT_EQ(decode(*b, 1, 5), expected);
  EXPECT_EQ(scores(*b, 1, expected), scores(*b, 0, expected)) << "to the bit";

  // What does not fit is an error and not a state.
  std::stringstream cut(whole.str().substr(0, whole.str().size() - 1));
  EXPECT_NE(message_of([&] { b->load_snapshot(cut, nullptr); }), "no error");
  std::stringstream without_base(more.str());
  EXPECT_NE(message_of([&] { b->load_snapshot(without_base, nullptr); }), "no error");
  std::stringstream wrong_base(more.str());
  EXPECT_NE(message_of([&] { b->load_snapshot(wrong_base, second.get()); }), "no error");
  EXPECT_FALSE(b->snapshot_format().empty());
}

TEST_P(BackendContract, WhatSnapshotsHoldIsCountedPieceByPiece) {
  const auto b = backend(1, 1400);
  const auto step = static_cast<std::size_t>(std::min(2 * b->prefill_chunk(), 400));
  const std::vector<Token> tokens = long_prompt(3 * static_cast<int>(step));
  b->reset(0);
  std::map<const void*, std::size_t> held;
  std::size_t sum = 0;
  std::vector<std::unique_ptr<Snapshot>> snapshots;
  for (std::size_t done = 0; done < tokens.size(); done += step) {
    b->prefill(0, std::span(tokens).subspan(done, step), true);
    snapshots.push_back(b->snapshot(0));
    sum += snapshots.back()->bytes();
    for (const MemoryPiece& piece : snapshots.back()->memory()) {
      const auto [at, fresh] = held.emplace(piece.identity, piece.bytes);
      EXPECT_TRUE(fresh || at->second == piece.bytes) << "the same memory has the same size";
    }
  }
  std::size_t distinct = 0;
  for (const auto& [identity, bytes] : held) distinct += bytes;
  EXPECT_LE(distinct, sum);
  EXPECT_GE(distinct, snapshots.size() * 4U * 6 * 8 * 128 * 128) << "each has a recurrent state of its own";
}

}  // namespace calla::test
