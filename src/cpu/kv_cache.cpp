#include "cpu/kv_cache.h"

#include <bit>
#include <cstring>

#include "model/snapshot_stream.h"

namespace calla::cpu {
namespace {

/// To nearest, even; a NaN stays one.
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>(bits >> 16U | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + (bits >> 16U & 1U)) >> 16U);
}

}  // namespace

void KvCache::reserve(int from, int to) {
  const std::size_t bytes = kv_block_bytes(heads_);
  const auto first = static_cast<std::size_t>(from / kv_block_positions);
  if (first < blocks_.size() && blocks_[first].use_count() > 1 && to > from) {
    auto own = std::make_shared<Region>(bytes);
    std::memcpy(own->data(), blocks_[first]->data(), bytes);
    blocks_[first] = std::move(own);
  }
  while (blocks_.size() < static_cast<std::size_t>(kv_blocks(to)))
    blocks_.push_back(std::make_shared<Region>(bytes));
}

void KvCache::truncate(int position) {
  const auto kept = static_cast<std::size_t>(kv_blocks(position));
  if (kept < blocks_.size()) blocks_.resize(kept);
}

KvCache KvCache::share(int position) const {
  KvCache copy(heads_);
  copy.blocks_.assign(blocks_.begin(), blocks_.begin() + kv_blocks(position));
  return copy;
}

void KvCache::add_memory(std::vector<MemoryPiece>& pieces) const {
  for (const auto& block : blocks_) pieces.push_back({block.get(), kv_block_bytes(heads_)});
}

void KvCache::save(std::ostream& out, int first) const {
  for (auto block = static_cast<std::size_t>(first); block < blocks_.size(); ++block)
    write_values(out, std::span<const std::byte>(blocks_[block]->data(), kv_block_bytes(heads_)));
}

void KvCache::load(std::istream& in, int count) {
  while (blocks_.size() < static_cast<std::size_t>(count)) {
    auto block = std::make_shared<Region>(kv_block_bytes(heads_));
    read_values(in, std::span<std::byte>(block->data(), kv_block_bytes(heads_)));
    blocks_.push_back(std::move(block));
  }
}

void KvCache::store(int position, int head, std::span<const float> key, std::span<const float> value) const {
  const int block = position / kv_block_positions;
  const auto within = static_cast<std::size_t>(position % kv_block_positions);
  constexpr std::size_t dims = Shape::attention_head_dim;
  constexpr std::size_t key_positions = 16;
  std::uint16_t* keys_at = keys(block, head) + within / key_positions * key_positions * dims;
  for (std::size_t d = 0; d < dims; ++d)
    keys_at[(d / 2 * key_positions + within % key_positions) * 2 + d % 2] = to_bf16(key[d]);
  constexpr std::size_t value_positions = 32;
  constexpr std::size_t chunk = 16;  // dims
  std::uint16_t* values_at = values(block, head) + within / value_positions * value_positions * dims;
  const std::size_t pair = within % value_positions / 2;
  for (std::size_t d = 0; d < dims; ++d)
    values_at[((d / chunk * chunk + pair) * chunk + d % chunk) * 2 + within % 2] = to_bf16(value[d]);
}

}  // namespace calla::cpu
