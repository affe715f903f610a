// Sequences and their snapshots without a model: tokens are written where the kernels would write them.
#include "cuda/sequence.h"

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "limited_pool.h"
#include "model/backend.h"

namespace calla::cuda {
namespace {

constexpr Shape small() {
  Shape shape = demo;
  shape.layers = 4;  // one of them with attention
  return shape;
}

/// A snapshot, and what it must hold.
struct Kept {
  std::unique_ptr<SequenceSnapshot> snapshot;
  std::vector<std::uint32_t> tokens;
  std::string saved;
};

class SequencesTest : public testing::TestWithParam<SnapshotMemory> {
 protected:
  static constexpr int slots = 3;
  static constexpr int context = 1000;

  /// Writes a token's key at its position, and the number of tokens into the state.
  void append(int slot, std::uint32_t token) {
    std::vector<std::uint32_t>& tokens = tokens_[static_cast<std::size_t>(slot)];
    const auto position = static_cast<int>(tokens.size());
    sequences_.reserve(slot, position + 1);
    if (position % page_positions == 0) look_up_pages(slot, position + 1);
    write(key(slot, position), token);
    tokens.push_back(token);
    write(sequences_.recurrent_of(slot), state_of(tokens));
    write(sequences_.logits_of(slot) + 7, ~state_of(tokens));
  }
  void check_slot(int slot) {
    const std::vector<std::uint32_t>& tokens = tokens_[static_cast<std::size_t>(slot)];
    std::vector<std::uint32_t> seen;
    for (int position = 0; position < static_cast<int>(tokens.size()); ++position) {
      std::uint32_t token = 0;
      check(cudaMemcpyAsync(&token, key(slot, position), sizeof token, cudaMemcpyDeviceToHost, stream_.get()),
            "reading");
      check(cudaStreamSynchronize(stream_.get()), "reading");
      seen.push_back(token);
    }
    ASSERT_EQ(seen, tokens);
    std::uint32_t state = 0;
    check(cudaMemcpyAsync(&state, sequences_.recurrent_of(slot), sizeof state, cudaMemcpyDeviceToHost,
                          stream_.get()),
          "reading");
    check(cudaStreamSynchronize(stream_.get()), "reading");
    ASSERT_EQ(state, state_of(tokens));
  }
  Kept keep(int slot) {
    const std::vector<std::uint32_t>& tokens = tokens_[static_cast<std::size_t>(slot)];
    return {sequences_.snapshot(slot, static_cast<int>(tokens.size())), tokens, {}};
  }
  void restore(int slot, const Kept& kept) {
    sequences_.restore(slot, *kept.snapshot);
    tokens_[static_cast<std::size_t>(slot)] = kept.tokens;
    look_up_pages(slot, static_cast<int>(kept.tokens.size()));
  }
  void clear(int slot) {
    sequences_.clear(slot);
    tokens_[static_cast<std::size_t>(slot)].clear();
  }
  static std::string saved(const SequenceSnapshot& snapshot) {
    std::stringstream out;
    snapshot.save(out, 0);
    return out.str();
  }

  Stream stream_ = make_stream();
  Sequences sequences_{small(), slots, context, GetParam(), stream_.get()};
  std::vector<std::vector<std::uint32_t>> tokens_ =
      std::vector<std::vector<std::uint32_t>>(static_cast<std::size_t>(slots));

 private:
  static std::uint32_t state_of(const std::vector<std::uint32_t>& tokens) {
    return static_cast<std::uint32_t>(tokens.size()) * 2654435761U + (tokens.empty() ? 0 : tokens.back());
  }
  void write(void* at, std::uint32_t value) {
    check(cudaMemcpyAsync(at, &value, sizeof value, cudaMemcpyHostToDevice, stream_.get()), "writing");
  }
  void look_up_pages(int slot, int positions) {
    std::vector<std::byte*>& pages = pages_[slot];
    pages.resize(static_cast<std::size_t>(page_count(positions)));
    if (pages.empty()) return;
    check(cudaMemcpyAsync(static_cast<void*>(pages.data()), static_cast<const void*>(sequences_.pages(slot)),
                          pages.size() * sizeof(std::byte*), cudaMemcpyDeviceToHost, stream_.get()),
          "reading");
    check(cudaStreamSynchronize(stream_.get()), "reading");
  }
  std::byte* key(int slot, int position) {
    return pages_[slot].at(static_cast<std::size_t>(position / page_positions)) +
           static_cast<std::ptrdiff_t>(position % page_positions) * 512;
  }

  std::map<int, std::vector<std::byte*>> pages_;
};

TEST_P(SequencesTest, AreWhatTheyShouldWhateverHappens) {
  std::mt19937 random(3);
  std::vector<Kept> all;
  std::uint32_t next = 1;
  std::unique_ptr<test::LimitedPool> pool;
  for (int turn = 0; turn < 250; ++turn) {
    const auto slot = static_cast<int>(random() % slots);
    auto& tokens = tokens_[static_cast<std::size_t>(slot)];
    const std::size_t pick = all.empty() ? 0 : random() % all.size();
    // Memory is short for a while, and then it is not.
    if (turn == 100) pool = std::make_unique<test::LimitedPool>(std::size_t{8} << 20U);
    try {
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
          for (std::size_t i = random() % 300; i > 0 && tokens.size() < context; --i) append(slot, next++);
          break;
        case 3:
          if (all.size() == 12) break;
          all.push_back(keep(slot));
          // While it is still being copied.
          if (random() % 2 == 0) all.back().saved = saved(*all.back().snapshot);
          break;
        case 4:
          if (!all.empty()) restore(slot, all[pick]);
          break;
        case 5:
          if (!all.empty()) all.erase(all.begin() + static_cast<std::ptrdiff_t>(pick));
          break;
        case 6: {
          if (all.empty()) break;
          // Its memory moves meanwhile.
          std::string bytes;
          std::thread saver([&] { bytes = saved(*all[pick].snapshot); });
          clear(slot);
          try {
            restore(slot, all[pick]);
          } catch (const OutOfMemory&) {
          }
          sequences_.settle();
          saver.join();
          if (all[pick].saved.empty()) all[pick].saved = bytes;
          ASSERT_EQ(all[pick].saved, bytes);
          std::stringstream in(bytes);
          all.push_back({sequences_.load(in, nullptr), all[pick].tokens, bytes});
          break;
        }
        default:
          check_slot(slot);
      }
    } catch (const OutOfMemory&) {
      ASSERT_GE(turn, 100);
      check_slot(slot);  // as it was
    }
    sequences_.settle();
    if (HasFatalFailure()) break;
  }
  for (int slot = 0; slot < slots; ++slot) {
    check_slot(slot);
    clear(slot);
  }
  pool.reset();
  for (const Kept& kept : all) {
    restore(0, kept);
    check_slot(0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, SequencesTest,
                         testing::Values(SnapshotMemory{},                               // nothing moves
                                         SnapshotMemory{.device = 0, .host = 64 << 20},  // everything
                                         SnapshotMemory{.device = 6 << 20, .host = 64 << 20},
                                         SnapshotMemory{.device = 4 << 20, .host = 5 << 20}),  // little room
                         [](const auto& budget) { return "Budget" + std::to_string(budget.index); });

}  // namespace
}  // namespace calla::cuda
