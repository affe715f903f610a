// The keys and values of one sequence, bfloat16, in blocks of 512 positions of all attention layers. A block
// that is full never changes again, so a snapshot shares it; memory is taken a block at a time as a
// conversation grows.
//
// Of one layer and KV head, a block holds 256 KiB of keys and 256 KiB of values, each contiguous, in the
// order in which attention reads them:
//   keys    [32 blocks of 16 positions][128 pairs of dims][16 positions][2]
//   values  [16 blocks of 32 positions][16 chunks of 16 dims][16 pairs of positions][16 dims][2]
#pragma once
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include "cpu/memory.h"
#include "model/backend.h"
#include "model/shape.h"

namespace calla::cpu {

constexpr int kv_block_positions = 512;
/// Of the keys, and of the values, of one layer and KV head of a block.
constexpr std::size_t kv_block_elements = std::size_t{kv_block_positions} * Shape::attention_head_dim;

constexpr int kv_blocks(int positions) { return (positions + kv_block_positions - 1) / kv_block_positions; }

/// The bytes of a block for `heads` = attention layers times KV heads.
constexpr std::size_t kv_block_bytes(int heads) {
  return 2 * sizeof(std::uint16_t) * kv_block_elements * static_cast<std::size_t>(heads);
}

class KvCache {
 public:
  /// `heads`: attention layers times KV heads. No memory yet.
  explicit KvCache(int heads) : heads_(heads) {}

  /// Takes the blocks for positions [from, to), and makes the block of `from` this cache's own if a snapshot
  /// shares it. Throws Error when memory is refused.
  void reserve(int from, int to);
  /// Forgets the blocks at and beyond `position`.
  void truncate(int position);
  /// A cache of the same content up to `position`, in the same blocks; who writes into a shared one copies it
  /// first.
  KvCache share(int position) const;

  /// Blocks held, in bytes.
  std::size_t bytes() const { return blocks_.size() * kv_block_bytes(heads_); }
  /// The same block by block: caches that share a block name the same memory.
  void add_memory(std::vector<MemoryPiece>& pieces) const;

  /// Writes the blocks from index `first` on.
  void save(std::ostream& out, int first) const;
  /// Appends blocks that save() has written, up to `count` in all. Throws Error when the stream ends early or
  /// memory is refused.
  void load(std::istream& in, int count);

  std::uint16_t* keys(int block, int head) const { return at(block, head, 0); }
  std::uint16_t* values(int block, int head) const { return at(block, head, 1); }

  /// Stores one position of one head, rounded to nearest even. key, value: [256].
  void store(int position, int head, std::span<const float> key, std::span<const float> value) const;

 private:
  std::uint16_t* at(int block, int head, int which) const {
    return blocks_[static_cast<std::size_t>(block)]->as<std::uint16_t>() +
           static_cast<std::size_t>(2 * head + which) * kv_block_elements;
  }

  int heads_;
  std::vector<std::shared_ptr<Region>> blocks_;
};

}  // namespace calla::cpu
