#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "metal/attention_cache.h"
#include "metal/kernels/arguments.h"
#include "metal/kernels/mixer_arguments.h"
#include "metal/kernels/mixer_grids.h"
#include "metal/mixer_support.h"
#include "model/shape.h"

namespace calla::metal {
namespace {

using calla_kernels::AttentionPrefillArguments;

class AttentionPrefill : public testing::TestWithParam<Shape> {
 protected:
  std::vector<float> inputs(std::size_t tokens, unsigned seed) const {
    return normal_values(tokens * e.projected, 0, 1, seed);
  }
  std::span<const float> rows(const std::vector<float>& projected, std::size_t first,
                              std::size_t count) const {
    return std::span(projected).subspan(first * e.projected, count * e.projected);
  }

  /// Takes the tokens of `projected` [tokens][e.projected] into slot 1.
  std::vector<float> prefill(const AttentionCache& cache, std::size_t position,
                             std::span<const float> projected) {
    using namespace calla_kernels;
    const auto tokens = static_cast<std::uint32_t>(projected.size() / e.projected);
    const auto heads = static_cast<std::uint32_t>(e.heads);
    const auto kv_heads = static_cast<std::uint32_t>(e.kv_heads);
    const AttentionPrefillArguments arguments{.tokens = tokens,
                                              .position = static_cast<unsigned>(position),
                                              .layer = AttentionCache::layer,
                                              .pages_per_slab = static_cast<unsigned>(cache.pages_per_slab),
                                              .page_stride = static_cast<unsigned>(cache.page_stride)};
    const View pages(cache.page_table, cache.max_pages * sizeof(unsigned));
    const auto inputs = cache.gpu.upload(std::vector<float>(projected.begin(), projected.end()));
    const auto queries = cache.gpu.room<float>(tokens * e.mixed);
    const auto mixed = cache.gpu.room<float>(tokens * e.mixed);
    cache.gpu.run({{{"attention_prepare",
                     attention_prepare_threads,
                     {inputs, cache.q_norm, cache.k_norm, cache.rope, pages, cache.slabs[0], cache.slabs[1],
                      cache.slabs[2], cache.slabs[3], queries, constants(arguments)},
                     {(heads + 2 * kv_heads) / 2, tokens}}},
                   {{"attention_prefill",
                     attention_prefill_threads,
                     {queries, inputs, pages, cache.slabs[0], cache.slabs[1], cache.slabs[2], cache.slabs[3],
                      mixed, constants(arguments)},
                     {(tokens + attention_tile_tokens - 1) / attention_tile_tokens, kv_heads}}}});
    return values_of<float>(mixed);
  }

  /// Prefills and compares: everything appended, and the results of the first tokens, the last ones and those
  /// around the ends of tiles, blocks and pages. Values are of about one; scores of a few units are known to
  /// some 1e-6, and so are the weights.
  void expect_attention(Gpu& on, std::size_t position, std::size_t tokens) {
    const AttentionCache cache(on, GetParam(), 2, position + tokens);
    cache.fill(1, position);
    expect_attention(cache, position, inputs(tokens, static_cast<unsigned>(position + tokens)));
  }
  void expect_attention(const AttentionCache& cache, std::size_t position,
                        const std::vector<float>& projected, double tolerance = 1e-5) {
    const std::size_t tokens = projected.size() / e.projected;
    const std::vector<float> mixed = prefill(cache, position, projected);
    for (std::size_t t = 0; t < tokens; ++t) cache.expect_appended(1, position + t, rows(projected, t, 1));
    std::set<std::size_t> compared{0, 1, 2, 3, 4, 31, 32, 63, 64, 65, 129, 255, 256, tokens - 2, tokens - 1};
    compared.erase(compared.lower_bound(tokens), compared.end());
    for (const std::size_t t : compared) {
      const double error =
          cache.error(1, position + t, rows(projected, t, 1), std::span(mixed).subspan(t * e.mixed, e.mixed));
      EXPECT_LT(error, tolerance) << "token " << t << " of " << tokens << " at " << position;
    }
  }

  AttentionExtents e{GetParam()};
  Gpu gpu{GetParam()};
  Gpu fast{GetParam(), GetParam() != demo};  // for what takes the checkers too long
};

TEST_P(AttentionPrefill, AttendsFromTheBeginning) {
  for (const std::size_t tokens : {1, 2, 3, 4, 5, 31, 32, 33}) expect_attention(gpu, 0, tokens);
  if (GetParam() != demo) return;
  for (const std::size_t tokens : {63, 64, 65, 130, 300}) expect_attention(fast, 0, tokens);
}

TEST_P(AttentionPrefill, AttendsFromAnyPosition) {
  for (const std::size_t position : {1, 63, 64, 255}) expect_attention(gpu, position, 3);
  expect_attention(fast, 1000, 1);
  if (GetParam() != demo) return;
  for (const std::size_t position : {31, 192, 250, 256, 257}) expect_attention(fast, position, 9);
  for (const std::size_t tokens : {30, 66}) expect_attention(fast, 1000, tokens);
}

// Pieces that begin at multiples of 64 give the bits of one, and so do any others.
TEST_P(AttentionPrefill, PiecesAreTheWhole) {
  const std::size_t tokens = GetParam() == demo ? 200 : 10;
  const std::size_t position = GetParam() == demo ? 192 : 64;
  const std::vector<float> projected = inputs(tokens, 50);
  const AttentionCache whole(fast, GetParam(), 2, position + tokens);
  whole.fill(1, position);
  const std::vector<float> mixed = prefill(whole, position, projected);
  for (const std::vector<std::size_t>& cuts : {std::vector<std::size_t>{64, 128}, {1, 7, 69}}) {
    const AttentionCache cache(fast, GetParam(), 2, position + tokens);
    cache.fill(1, position);
    std::vector<float> pieces;
    std::size_t first = 0;
    const auto take = [&](std::size_t end) {
      const std::vector<float> piece = prefill(cache, position + first, rows(projected, first, end - first));
      pieces.insert(pieces.end(), piece.begin(), piece.end());
      first = end;
    };
    for (const std::size_t cut : cuts) {
      if (cut < tokens) take(cut);
    }
    take(tokens);
    EXPECT_TRUE(same_bits<float>(pieces, mixed));
    for (std::size_t p = 0; p < position + tokens; ++p) {
      for (std::size_t h = 0; h < 2 * e.kv_heads; ++h)
        ASSERT_TRUE(same_bits<std::uint16_t>(cache.row(1, p, h / 2, h % 2), whole.row(1, p, h / 2, h % 2)))
            << p;
    }
  }
}

// Scores of up to some 200, of which exp alone would overflow.
TEST_P(AttentionPrefill, TakesLargeScores) {
  constexpr std::size_t position = 100;
  const AttentionCache cache(gpu, GetParam(), 2, position + 6);
  cache.fill(1, position);
  for (std::size_t p = 0; p < position; ++p) {
    for (std::size_t kv_head = 0; kv_head < e.kv_heads; ++kv_head) {
      for (std::uint16_t& x : cache.row(1, p, kv_head, 0))
        x = static_cast<std::uint16_t>(x + (6 << 7));  // times 64
    }
  }
  // The terms of a score are 64 times as large, and its error with them.
  expect_attention(cache, position, inputs(6, 60), 64e-5);
}

// Decode goes on where prefill ends.
TEST_P(AttentionPrefill, DecodeGoesOn) {
  constexpr std::size_t tokens = 70;
  const AttentionCache cache(gpu, GetParam(), 2, tokens + 1);
  expect_attention(cache, 0, inputs(tokens, 70));
  const std::vector<float> projected = inputs(1, 71);
  const calla_kernels::AttentionArguments arguments{
      .slots = {1, calla_kernels::no_slot, calla_kernels::no_slot, calla_kernels::no_slot},
      .layer = AttentionCache::layer,
      .max_pages = static_cast<unsigned>(cache.max_pages),
      .pages_per_slab = static_cast<unsigned>(cache.pages_per_slab),
      .page_stride = static_cast<unsigned>(cache.page_stride),
      .splits = 1};
  const auto slots = gpu.upload(
      std::vector<calla_kernels::SlotState>(2, {.position = tokens, .token = 0, .ended = 0, .draws = 0}));
  const auto mixed = gpu.room<float>(e.mixed);
  gpu.run("attention_step", calla_kernels::attention_step_threads,
          {gpu.upload(projected), cache.q_norm, cache.k_norm, cache.rope, slots, cache.page_table,
           cache.slabs[0], cache.slabs[1], cache.slabs[2], cache.slabs[3], mixed, constants(arguments)},
          {1, static_cast<std::uint32_t>(e.heads) / calla_kernels::queries_per_group, 1});
  cache.expect_appended(1, tokens, projected);
  EXPECT_LT(cache.error(1, tokens, projected, values_of<float>(mixed)), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionPrefill, testing::Values(demo, qwen36_35b),
                         [](const auto& shape) { return shape.param == demo ? "Demo" : "Qwen"; });

}  // namespace
}  // namespace calla::metal
