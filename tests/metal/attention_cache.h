// Keys and values of slots in pages, and attention to them in double: what the kernels must give.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "metal/kernels/arguments.h"
#include "metal/mixer_support.h"
#include "model/affine.h"
#include "model/shape.h"

namespace calla::metal {

/// Extents of an attention layer.
struct AttentionExtents {
  explicit AttentionExtents(const Shape& shape)
      : heads(static_cast<std::size_t>(shape.attention_heads)),
        kv_heads(static_cast<std::size_t>(shape.kv_heads)),
        mixed(heads * head_dim),
        projected(2 * mixed + 2 * kv_heads * head_dim) {}

  static constexpr std::size_t head_dim = Shape::attention_head_dim;
  static constexpr std::size_t pairs = Shape::rotary_dim / 2;
  std::size_t heads;
  std::size_t kv_heads;
  std::size_t mixed;
  std::size_t projected;
};

inline double rope_angle(std::size_t position, std::size_t pair) {
  return static_cast<double>(position) *
         std::pow(rope_theta, -static_cast<double>(pair) / AttentionExtents::pairs);
}

/// The head after RMS norm and RoPE, in double.
inline std::vector<double> turned(std::span<const float> head, std::span<const float> gain,
                                  std::size_t position) {
  double squares = 0;
  for (const float x : head) squares += double{x} * x;
  const double scale = 1 / std::sqrt(squares / AttentionExtents::head_dim + rms_norm_epsilon);
  std::vector<double> out(AttentionExtents::head_dim);
  for (std::size_t d = 0; d < AttentionExtents::head_dim; ++d) out[d] = head[d] * scale * gain[d];
  for (std::size_t pair = 0; pair < AttentionExtents::pairs; ++pair) {
    const double cosine = std::cos(rope_angle(position, pair));
    const double sine = std::sin(rope_angle(position, pair));
    const double low = out[pair];
    const double high = out[pair + AttentionExtents::pairs];
    out[pair] = low * cosine - high * sine;
    out[pair + AttentionExtents::pairs] = high * cosine + low * sine;
  }
  return out;
}

/// Slots with a cache of two layers, of which the second is used, in pages that lie all over the slabs.
struct AttentionCache {
  static constexpr std::size_t layers = 2;
  static constexpr std::size_t layer = 1;
  static constexpr std::size_t head_dim = AttentionExtents::head_dim;
  static constexpr std::size_t pairs = AttentionExtents::pairs;

  Gpu& gpu;
  const AttentionExtents e;
  const std::size_t max_pages;
  const std::size_t page_stride;
  const std::size_t pages_per_slab;
  const std::vector<float> q_gain;
  const std::vector<float> k_gain;
  std::unique_ptr<Buffer> q_norm;
  std::unique_ptr<Buffer> k_norm;
  std::unique_ptr<Buffer> rope;
  std::unique_ptr<Buffer> page_table;
  std::array<std::unique_ptr<Buffer>, calla_kernels::kv_slabs> slabs;

  AttentionCache(Gpu& device, const Shape& shape, std::size_t slots, std::size_t context)
      : gpu(device),
        e(shape),
        max_pages((context + calla_kernels::page_positions - 1) / calla_kernels::page_positions),
        page_stride(layers * e.kv_heads * 2 * calla_kernels::page_positions * head_dim),
        pages_per_slab((slots * max_pages + 3) / 4),
        q_gain(normal_values(head_dim, 1, 0.3F, 1)),
        k_gain(normal_values(head_dim, 1, 0.3F, 2)),
        q_norm(gpu.upload(q_gain)),
        k_norm(gpu.upload(k_gain)) {
    std::vector<unsigned> table(slots * max_pages);
    std::iota(table.begin(), table.end(), 0U);
    std::ranges::shuffle(table, std::mt19937(3));
    page_table = gpu.upload(table);
    for (auto& slab : slabs) slab = gpu.room<std::uint16_t>(pages_per_slab * page_stride);
    std::vector<float> turns;
    for (std::size_t position = 0; position < context; ++position) {
      for (std::size_t pair = 0; pair < pairs; ++pair) {
        turns.push_back(static_cast<float>(std::cos(rope_angle(position, pair))));
        turns.push_back(static_cast<float>(std::sin(rope_angle(position, pair))));
      }
    }
    rope = gpu.upload(turns);
  }

  /// The row of keys (0) or values (1) of a position.
  std::span<std::uint16_t> row(std::size_t slot, std::size_t position, std::size_t kv_head,
                               std::size_t part) const {
    constexpr std::size_t positions = calla_kernels::page_positions;
    const std::size_t page = page_table->as<unsigned>()[slot * max_pages + position / positions];
    const std::size_t block = ((layer * e.kv_heads + kv_head) * 2 + part) * positions;
    return slabs.at(page / pages_per_slab)
        ->as<std::uint16_t>()
        .subspan(page % pages_per_slab * page_stride + (block + position % positions) * head_dim, head_dim);
  }

  /// Random keys and values of a slot before `position`.
  void fill(std::size_t slot, std::size_t position) const {
    std::mt19937 random(static_cast<unsigned>(1000 + slot));
    std::normal_distribution<float> normal;
    for (std::size_t p = 0; p < position; ++p) {
      for (std::size_t h = 0; h < 2 * e.kv_heads; ++h) {
        for (std::uint16_t& x : row(slot, p, h / 2, h % 2))
          x = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
      }
    }
  }

  /// Checks the row that a token's keys and values have left at its position.
  void expect_appended(std::size_t slot, std::size_t position, std::span<const float> projected) const {
    for (std::size_t kv_head = 0; kv_head < e.kv_heads; ++kv_head) {
      const auto key_input = projected.subspan(2 * e.mixed + kv_head * head_dim, head_dim);
      const auto value_input = projected.subspan(2 * e.mixed + (e.kv_heads + kv_head) * head_dim, head_dim);
      const std::vector<double> key = turned(key_input, k_gain, position);
      const auto new_key = row(slot, position, kv_head, 0);
      const auto new_value = row(slot, position, kv_head, 1);
      for (std::size_t d = 0; d < head_dim; ++d) {  // half a unit of the last of 8 bits, and float32's error
        ASSERT_NEAR(bf16_to_float(new_key[d]), key[d], std::abs(key[d]) * 0x1.01p-8 + 1e-6) << d;
        ASSERT_NEAR(bf16_to_float(new_value[d]), value_input[d], std::abs(value_input[d]) * 0x1p-8) << d;
      }
    }
  }

  /// The largest difference of a token's gated result from attention in double to the cache as it is, its own
  /// position the last; infinite where the result is no number.
  double error(std::size_t slot, std::size_t position, std::span<const float> projected,
               std::span<const float> mixed) const {
    double worst = 0;
    std::vector<double> weights(position + 1);
    for (std::size_t head = 0; head < e.heads; ++head) {
      const std::size_t kv_head = head * e.kv_heads / e.heads;
      const std::vector<double> q =
          turned(projected.subspan(2 * head * head_dim, head_dim), q_gain, position);
      double peak = -1e30;
      for (std::size_t p = 0; p <= position; ++p) {
        const auto key = row(slot, p, kv_head, 0);
        double score = 0;
        for (std::size_t d = 0; d < head_dim; ++d) score += q[d] * bf16_to_float(key[d]);
        weights[p] = score / 16;
        peak = std::max(peak, weights[p]);
      }
      double sum = 0;
      std::vector<double> out(head_dim);
      for (std::size_t p = 0; p <= position; ++p) {
        const double weight = std::exp(weights[p] - peak);
        const auto value = row(slot, p, kv_head, 1);
        for (std::size_t d = 0; d < head_dim; ++d) out[d] += weight * bf16_to_float(value[d]);
        sum += weight;
      }
      for (std::size_t d = 0; d < head_dim; ++d) {
        const double gate = projected[(2 * head + 1) * head_dim + d];
        const double difference = mixed[head * head_dim + d] - out[d] / sum / (1 + std::exp(-gate));
        worst = std::max(worst, known(difference));
      }
    }
    return worst;
  }

  /// Everything that kernels may change.
  std::vector<std::uint16_t> contents() const {
    std::vector<std::uint16_t> all;
    for (const auto& slab : slabs)
      all.insert(all.end(), slab->as<std::uint16_t>().begin(), slab->as<std::uint16_t>().end());
    return all;
  }
};

}  // namespace calla::metal
