#include "cuda/attention_prefill.h"

#include <array>
#include <bit>
#include <functional>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/mixer_references.h"
#include "cuda/mixer_support.h"

namespace calla::cuda {
namespace {

constexpr int dim = Shape::attention_head_dim;

float rounded(double x) { return __bfloat162float(__float2bfloat16_rn(static_cast<float>(x))); }

/// A sequence's pages: the layer's keys and values of the positions before the call, and NaNs everywhere
/// else.
template <Shape S>
class Pages {
 public:
  /// With `shared`, all full pages before the call are one page, so that long sequences need little memory.
  Pages(int layer, int position, int tokens, bool shared) : layer_(layer) {
    const int count = (position + tokens - 1) / page_positions + 1;
    const int full = position / page_positions;
    const int distinct = shared && full > 0 ? count - full + 1 : count;
    page_of_ = [=](int page) { return shared && full > 0 ? std::max(page - full + 1, 0) : page; };
    std::vector<std::uint16_t> content(static_cast<std::size_t>(distinct) * page_elements<S>(), 0xFFFF);
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    for (int page = 0; page < distinct; ++page) {
      const bool is_full = shared && full > 0 ? page == 0 : page < full;
      const int rows = is_full ? page_positions : page_of_(full) == page ? position % page_positions : 0;
      for (int head = 0; head < S.kv_heads; ++head) {
        for (int values = 0; values < 2; ++values) {
          const std::size_t first =
              static_cast<std::size_t>(page) * page_elements<S>() + page_offset<S>(layer, head, values);
          for (std::size_t i = 0; i < static_cast<std::size_t>(rows) * dim; ++i)
            content[first + i] =
                static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
        }
      }
    }
    memory_ = on_device(content);
    std::vector<__nv_bfloat16*> table;
    for (int page = 0; page < count; ++page) {
      table.push_back(reinterpret_cast<__nv_bfloat16*>(memory_.data()) +
                      static_cast<std::size_t>(page_of_(page)) * page_elements<S>());
    }
    table_ = on_device(table);
  }

  PageTable table() const { return table_.data(); }
  void fetch() { content_ = on_host(memory_); }
  const std::vector<std::uint16_t>& content() const { return content_; }

  /// Of what was fetched: the 256 values of a position's key (value: 1).
  std::array<float, dim> row(int position, int head, int values) const {
    const std::size_t first =
        static_cast<std::size_t>(page_of_(position / page_positions)) * page_elements<S>() +
        page_offset<S>(layer_, head, values) + static_cast<std::size_t>(position % page_positions) * dim;
    std::array<float, dim> out{};
    for (std::size_t i = 0; i < dim; ++i)
      out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(content_[first + i]) << 16);
    return out;
  }

 private:
  int layer_;
  std::function<int(int)> page_of_;
  DeviceArray<std::uint16_t> memory_;
  DeviceArray<__nv_bfloat16*> table_;
  std::vector<std::uint16_t> content_;
};

template <Shape S>
struct Inputs {
  static constexpr int width = 2 * S.attention_dim() + 2 * S.kv_dim();

  int tokens;
  int position;
  int layer = S.attention_layers() - 1;
  bool shared_pages = false;
  std::vector<__half> projected =
      as_halves(normal_values(static_cast<std::size_t>(tokens) * width, 0.0F, 1.0F, 12));
  std::vector<float> query_norm = normal_values(dim, 1.0F, 0.3F, 13);
  std::vector<float> key_norm = normal_values(dim, 1.0F, 0.3F, 14);
};

template <Shape S>
struct Outputs {
  std::vector<__half> y;
  Pages<S> pages;
};

/// Runs the kernels, in calls of `piece` tokens.
template <Shape S>
Outputs<S> run(const Inputs<S>& in, int piece, AttentionKernel kernel) {
  Pages<S> pages(in.layer, in.position, in.tokens, in.shared_pages);
  const auto projected = on_device(in.projected);
  const auto query_norm = on_device(in.query_norm);
  const auto key_norm = on_device(in.key_norm);
  const auto y = poisoned<__half>(static_cast<std::size_t>(in.tokens) * S.attention_dim());
  const Stream stream = make_stream();
  for (int first = 0; first < in.tokens; first += piece) {
    attention_prefill<S>({.projected = projected.data() + static_cast<std::size_t>(first) * Inputs<S>::width,
                          .stride = Inputs<S>::width,
                          .query_norm = query_norm.data(),
                          .key_norm = key_norm.data(),
                          .pages = pages.table(),
                          .attention_layer = in.layer,
                          .tokens = std::min(piece, in.tokens - first),
                          .position = in.position + first,
                          .y = y.data() + static_cast<std::size_t>(first) * S.attention_dim()},
                         kernel, stream.get());
  }
  check(cudaStreamSynchronize(stream.get()), "running attention prefill");
  pages.fetch();
  return {on_host(y), std::move(pages)};
}

AttentionRow turned_at(int position, const __half* x, const std::vector<float>& gain) {
  AttentionRow row{};
  std::transform(x, x + dim, row.begin(), [](__half value) { return __half2float(value); });
  constexpr std::size_t half = Shape::rotary_dim / 2;
  return normed_and_turned(row, gain, [&](std::size_t j) {
    const double angle = position * std::pow(rope_theta, -static_cast<double>(j) / half);
    return std::pair(std::cos(angle), std::sin(angle));
  });
}

/// The cache and, for some of the tokens, y against loops in double over the rounded queries, keys and
/// values.
template <Shape S>
void expect_attention(const Inputs<S>& in, const Outputs<S>& got) {
  constexpr int heads = S.attention_heads;
  constexpr int group = heads / S.kv_heads;
  constexpr std::size_t width = Inputs<S>::width;
  const std::string what = fmt::format("{} tokens at {}", in.tokens, in.position);
  const auto column = [&](int token, int head) { return in.projected.data() + token * width + head * dim; };

  RelativeError key_error;
  std::size_t wrong_values = 0;
  for (int t = 0; t < in.tokens; ++t) {
    for (int head = 0; head < S.kv_heads; ++head) {
      const auto key = turned_at(in.position + t, column(t, 2 * heads + head), in.key_norm);
      const auto cached_key = got.pages.row(in.position + t, head, 0);
      const auto cached_value = got.pages.row(in.position + t, head, 1);
      for (std::size_t i = 0; i < dim; ++i) {
        key_error.add(cached_key[i], rounded(key[i]));
        const float value = __half2float(column(t, 2 * heads + S.kv_heads + head)[i]);
        if (cached_value[i] != rounded(value)) ++wrong_values;
      }
    }
  }
  EXPECT_EQ(wrong_values, 0U) << what;
  EXPECT_LT(key_error.value(), 1e-4)
      << what;  // but for the few values at the edge between two neighbours: equal

  std::set<int> tokens = {0,   1,   2,   15,  16,  17,  31,  63,  64,           65,
                          127, 128, 129, 255, 256, 511, 512, 777, in.tokens - 1};
  tokens.erase(tokens.lower_bound(in.tokens), tokens.end());
  if (in.position > 100'000) tokens = {0, in.tokens - 1};
  std::vector<RelativeError> errors(heads);
  in_parallel(heads, [&](int head) {
    for (const int t : tokens) {
      const auto query = turned_at(in.position + t, column(t, 2 * head), in.query_norm);
      AttentionRow q{};
      std::transform(query.begin(), query.end(), q.begin(), rounded);
      const AttentionRow o = attend(
          q, in.position + t + 1, [&](int p) { return got.pages.row(p, head / group, 0); },
          [&](int p) { return got.pages.row(p, head / group, 1); });
      for (std::size_t i = 0; i < dim; ++i) {
        const double gate = sigmoid_of(__half2float(column(t, 2 * head + 1)[i]));
        const std::size_t at =
            (static_cast<std::size_t>(t) * heads + static_cast<std::size_t>(head)) * dim + i;
        errors[static_cast<std::size_t>(head)].add(__half2float(got.y[at]), o[i] * gate);
      }
    }
  });
  double worst = 0;
  for (const RelativeError& error : errors) worst = std::max(worst, error.value());
  EXPECT_LT(worst, 3e-3) << what;  // P in bfloat16: 2^-9 at most, evenly spread, for each summand
  testing::Test::RecordProperty(fmt::format("errors_{}_{}", in.tokens, in.position),
                                fmt::format("{:.1e} {:.1e}", worst, key_error.value()));
}

template <Shape S>
void expect_attention(AttentionKernel kernel, int tokens, int position) {
  const Inputs<S> in{.tokens = tokens, .position = position};
  expect_attention<S>(in, run<S>(in, tokens, kernel));
}

/// For every kernel that the device can run.
class AttentionPrefillTest : public testing::TestWithParam<AttentionKernel> {
 protected:
  void SetUp() override {
    if (GetParam() < attention_kernel()) GTEST_SKIP() << "this GPU cannot run it";
  }
};

TEST_P(AttentionPrefillTest, IsExactAtEveryTileEdge) {
  for (const int tokens : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257})
    expect_attention<qwen36_35b>(GetParam(), tokens, 0);
}
TEST_P(AttentionPrefillTest, IsExactAtEveryPosition) {
  for (const int position : {1, 3, 63, 64, 255, 256, 257, 511, 1000, 4095})
    expect_attention<qwen36_35b>(GetParam(), 70, position);
}
TEST_P(AttentionPrefillTest, IsExactForManyTokens) {
  expect_attention<qwen36_35b>(GetParam(), 1000, 64);
  expect_attention<qwen36_35b>(GetParam(), 8193, 0);
}
TEST_P(AttentionPrefillTest, IsExactForTheDemo) {
  for (const int tokens : {1, 64, 65, 1000}) expect_attention<demo>(GetParam(), tokens, 320);
}
TEST_P(AttentionPrefillTest, IsExactAtTheEndOfTheContext) {
  const Inputs<demo> in{.tokens = 5, .position = 262'139, .shared_pages = true};
  expect_attention<demo>(in, run<demo>(in, in.tokens, GetParam()));
}

TEST_P(AttentionPrefillTest, PiecesAreTheWholeBitForBit) {
  const Inputs<qwen36_35b> in{.tokens = 577, .position = 192};
  const auto whole = run<qwen36_35b>(in, in.tokens, GetParam());
  for (const int piece : {64, 128, 320}) {
    const auto pieces = run<qwen36_35b>(in, piece, GetParam());
    EXPECT_TRUE(same_bits(whole.y, pieces.y)) << piece;
    EXPECT_TRUE(same_bits(whole.pages.content(), pieces.pages.content())) << piece;
  }
}

std::string name_of(const testing::TestParamInfo<AttentionKernel>& kernel) {
  switch (kernel.param) {
    case AttentionKernel::wgmma:
      return "wgmma";
    case AttentionKernel::mma_64:
      return "mma_64";
    case AttentionKernel::mma_32:
      return "mma_32";
  }
  return {};
}
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionPrefillTest,
                         testing::Values(AttentionKernel::wgmma, AttentionKernel::mma_64,
                                         AttentionKernel::mma_32),
                         name_of);

}  // namespace
}  // namespace calla::cuda
