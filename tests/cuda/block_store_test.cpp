#include "cuda/block_store.h"

#include <atomic>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "limited_pool.h"
#include "model/backend.h"

namespace calla::cuda {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20U;
constexpr std::size_t odd_bytes = 5 * mib + 4100;  // of several pieces, the last one not full

/// Bytes that differ from block to block and from place to place.
std::vector<std::byte> pattern(std::uint32_t seed, std::size_t bytes = odd_bytes) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525U + 1013904223U;
    all[i] = static_cast<std::byte>(seed >> 24U);
  }
  return all;
}

class BlockStoreTest : public testing::Test {
 protected:
  /// A block with these bytes, written in the order of the stream.
  std::shared_ptr<MemoryBlock> block(BlockStore& store, const std::vector<std::byte>& bytes) {
    auto made = store.create(bytes.size());
    check(cudaMemcpyAsync(made->data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_.get()),
          "writing");
    return made;
  }
  std::vector<std::byte> read(const std::byte* data, std::size_t bytes) {
    std::vector<std::byte> all(bytes);
    check(cudaMemcpyAsync(all.data(), data, bytes, cudaMemcpyDeviceToHost, stream_.get()), "reading");
    check(cudaStreamSynchronize(stream_.get()), "reading");
    return all;
  }
  static std::vector<std::byte> saved(const MemoryBlock& block) {
    const Stream stream = make_stream();
    Staging staging(stream.get());
    std::stringstream out;
    block.write(out, staging);
    const std::string text = out.str();
    std::vector<std::byte> all(text.size());
    std::memcpy(all.data(), text.data(), text.size());
    return all;
  }

  Stream stream_ = make_stream();
};

TEST_F(BlockStoreTest, ABlockMovesOutAndBackByteForByte) {
  BlockStore store({.device = 0, .host = 64 * mib}, mib, stream_.get());
  const std::vector<std::byte> bytes = pattern(1);
  const auto there = block(store, bytes);
  for (int round = 0; round < 3; ++round) {
    store.residency().settle();
    EXPECT_FALSE(there->on_device());
    EXPECT_EQ(saved(*there), bytes);
    const Hold hold(store, there);
    EXPECT_TRUE(there->on_device());
    EXPECT_EQ(read(there->data(), bytes.size()), bytes);
    EXPECT_EQ(saved(*there), bytes);
  }
}

TEST_F(BlockStoreTest, ABlockComesBackWhileItIsStillOnItsWay) {
  BlockStore store({.device = 0, .host = 64 * mib}, mib, stream_.get());
  for (std::uint32_t i = 0; i < 10; ++i) {
    const auto there = block(store, pattern(i));
    store.residency().settle();
    ASSERT_FALSE(there->on_device());
    const Hold hold(store, there);
    ASSERT_EQ(read(there->data(), odd_bytes), pattern(i)) << i;
  }
}

TEST_F(BlockStoreTest, PartsAreCopiedFromWhereverTheyLie) {
  BlockStore store({.device = 0, .host = 64 * mib}, mib, stream_.get());
  const std::vector<std::byte> bytes = pattern(2);
  const auto there = block(store, bytes);
  const DeviceArray<std::byte> to(bytes.size());
  for (int round = 0; round < 2; ++round) {
    for (const std::size_t from : {std::size_t{0}, std::size_t{100}, mib - 4, mib, 3 * mib + 12}) {
      for (const std::size_t count : {std::size_t{4}, mib, 2 * mib + 4000}) {
        there->copy_to(to.data(), from, count);
        const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(from);
        EXPECT_EQ(read(to.data(), count),
                  std::vector<std::byte>(begin, begin + static_cast<std::ptrdiff_t>(count)))
            << from << ' ' << count;
      }
    }
    store.residency().settle();
    EXPECT_FALSE(there->on_device());
  }
}

/// Nothing waits for a copy to the host, and the memory it comes from is soon another's.
TEST_F(BlockStoreTest, WhatComesAfterDoesNotDisturbACopyUnderWay) {
  BlockStore store({.device = 0, .host = 512 * mib}, mib, stream_.get());
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  std::vector<std::vector<std::byte>> expected;
  for (std::uint32_t i = 0; i < 24; ++i) {
    expected.push_back(pattern(i));
    blocks.push_back(block(store, expected.back()));
    store.residency().settle();
    const auto other = store.create(odd_bytes);
    check(cudaMemsetAsync(other->data(), 0xEE, odd_bytes, stream_.get()), "writing");
  }
  EXPECT_FALSE(blocks.front()->on_device());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i]->on_device()) continue;  // the host's memory was not pinned yet
    const Hold hold(store, blocks[i]);
    EXPECT_EQ(read(blocks[i]->data(), odd_bytes), expected[i]) << i;
  }
}

TEST_F(BlockStoreTest, HostMemoryIsUsedAgainInOrder) {
  // Room for two blocks: what moves out takes the place of what has just come back.
  BlockStore store({.device = 0, .host = 12 * mib}, mib, stream_.get());
  const std::vector<std::byte> bytes = pattern(3);
  const auto first = block(store, bytes);
  store.residency().settle();
  for (std::uint32_t i = 0; i < 20; ++i) {
    const std::vector<std::byte> others = pattern(100 + i);
    const auto other = block(store, others);
    store.residency().settle();
    ASSERT_FALSE(other->on_device());
    const Hold hold(store, first);  // its place becomes free
    const auto next = block(store, pattern(200 + i));
    store.residency().settle();  // and is taken
    ASSERT_FALSE(next->on_device());
    ASSERT_EQ(read(first->data(), odd_bytes), bytes) << i;
    const Hold again(store, other);
    ASSERT_EQ(read(other->data(), odd_bytes), others) << i;
  }
}

TEST_F(BlockStoreTest, TheHostIsBounded) {
  BlockStore store({.device = 0, .host = 12 * mib}, mib, stream_.get());
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  for (std::uint32_t i = 0; i < 4; ++i) blocks.push_back(block(store, pattern(i)));
  store.residency().settle();
  EXPECT_EQ(store.residency().moved_bytes(), 2 * odd_bytes);
  EXPECT_EQ(store.residency().idle_bytes(), 2 * odd_bytes);
}

TEST_F(BlockStoreTest, IdleBlocksMakeRoom) {
  BlockStore store({.device = std::uint64_t{1} << 40U, .host = 64 * mib}, mib, stream_.get());
  const test::LimitedPool pool(16 * mib);
  std::vector<std::shared_ptr<MemoryBlock>> blocks;
  for (std::uint32_t i = 0; i < 8; ++i) blocks.push_back(block(store, pattern(i)));
  EXPECT_FALSE(blocks.front()->on_device());
  EXPECT_TRUE(blocks.back()->on_device());
  for (std::uint32_t i = 0; i < 8; ++i) {
    const Hold hold(store, blocks[i]);
    EXPECT_EQ(read(blocks[i]->data(), odd_bytes), pattern(i)) << i;
  }
  // Until the host is full, too.
  EXPECT_THROW(
      {
        for (std::uint32_t i = 0; i < 20; ++i) blocks.push_back(block(store, pattern(i)));
      },
      OutOfMemory);
  for (std::uint32_t i = 0; i < blocks.size(); ++i)
    EXPECT_EQ(saved(*blocks[i]), pattern(i < 8 ? i : i - 8)) << i;
}

TEST_F(BlockStoreTest, SavesWhileItMoves) {
  BlockStore store({.device = 0, .host = 64 * mib}, mib, stream_.get());
  const std::vector<std::byte> bytes = pattern(5);
  const auto there = block(store, bytes);
  check(cudaStreamSynchronize(stream_.get()), "writing");
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread saver([&] {
    for (int i = 0; i < 20; ++i) wrong += saved(*there) == bytes ? 0 : 1;
    done = true;
  });
  while (!done) {
    store.residency().settle();
    const Hold hold(store, there);
  }
  saver.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace calla::cuda
