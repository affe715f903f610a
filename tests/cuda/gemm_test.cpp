// The products of prefill against double loops. Halves are compared to 1e-3 (rounding to half, 2^-11 at most,
// dominates), floats to 3e-5 (2,000 and more additions in float, truncated by the tensor cores).
#include "cuda/gemm.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "cuda/arrays.h"
#include "cuda/gemm_matrices.h"
#include "cuda/gemm_product.h"

namespace calla::cuda {
namespace {

std::vector<__half> random_halves(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<__half> values(count);
  for (__half& value : values) value = __float2half(normal(random));
  return values;
}

float to_float(__half value) { return __half2float(value); }

bool same_bits(const void* a, const void* b, std::size_t bytes) { return std::memcmp(a, b, bytes) == 0; }

/// Collects pairs of got and expected; the error is that of the norm, and each element's against the root
/// mean square.
class Comparison {
 public:
  void add(int token, int row, double got, double expected) { pairs_.push_back({token, row, got, expected}); }
  void finish(const char* what, double tolerance) const {
    double wrong = 0;
    double norm = 0;
    for (const Pair& p : pairs_) {
      wrong += (p.got - p.expected) * (p.got - p.expected);
      norm += p.expected * p.expected;
    }
    const double rms = std::sqrt(norm / static_cast<double>(pairs_.size()));
    const double error = std::sqrt(wrong / norm);
    EXPECT_LT(error, tolerance) << what;
    int shown = 0;
    int bad = 0;
    for (const Pair& p : pairs_) {
      if (std::abs(p.got - p.expected) <= 8 * tolerance * (rms + std::abs(p.expected))) continue;
      ++bad;
      if (++shown <= 6)
        ADD_FAILURE() << what << " token " << p.token << " row " << p.row << ": " << p.got << " expected "
                      << p.expected;
    }
    EXPECT_EQ(bad, 0) << what << " of " << pairs_.size();
    std::printf("  %-28s error %.2e\n", what, error);
  }

 private:
  struct Pair {
    int token;
    int row;
    double got;
    double expected;
  };
  std::vector<Pair> pairs_;
};

/// The rows' products with x's row.
std::vector<double> multiply(const RandomMatrices& w, int expert,
                             const std::vector<std::vector<double>>& xs) {
  // [x][row]
  std::vector<double> y(xs.size() * static_cast<std::size_t>(w.rows));
  std::vector<double> weights;
  for (int r = 0; r < w.rows; ++r) {
    w.row_of(expert, r, weights);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      double sum = 0;
      for (std::size_t c = 0; c < weights.size(); ++c) sum += weights[c] * xs[i][c];
      y[i * static_cast<std::size_t>(w.rows) + static_cast<std::size_t>(r)] = sum;
    }
  }
  return y;
}

std::vector<double> row_of(const std::vector<__half>& x, int row, int columns) {
  std::vector<double> values(static_cast<std::size_t>(columns));
  for (int c = 0; c < columns; ++c)
    values[static_cast<std::size_t>(c)] = to_float(x[static_cast<std::size_t>(row) * columns + c]);
  return values;
}

double silu(double x) { return x / (1 + std::exp(-x)); }

/// What SwiGLU makes of a product's rows: eight of gate, then the same eight of up.
std::vector<double> swiglu(const double* rows, int count) {
  std::vector<double> inner(static_cast<std::size_t>(count / 2));
  for (int i = 0; i < count / 2; ++i) {
    const int at = i / 8 * 16 + i % 8;
    inner[static_cast<std::size_t>(i)] = silu(rows[at]) * rows[at + 8];
  }
  return inner;
}

/// Which kernel: the device's own, or the one for every GPU.
enum class Path { own, any };

Product product_of(const RandomMatrices& w, const DeviceArray<std::uint8_t>& packed, const __half* x,
                   int tokens) {
  Product p;
  p.weights = reinterpret_cast<const std::byte*>(packed.data());
  p.expert_bytes = tiled_bytes(w.rows, w.columns);
  p.rows = w.rows;
  p.groups = w.columns / 64;
  p.x = x;
  p.tokens = tokens;
  p.split = w.rows;
  return p;
}
Tiles tiles_of(const RandomMatrices& w, const DeviceArray<std::uint8_t>& packed) {
  return {.data = reinterpret_cast<const std::byte*>(packed.data()), .rows = w.rows, .columns = w.columns};
}

/// Edges of tiles, and the ends.
std::vector<int> interesting(int count) {
  std::vector<int> tokens;
  for (const int t : {0, 1, 7, 8, 31, 32, 63, 64, 127, 128, 129, count - 2, count - 1}) {
    if (t >= 0 && t < count && (tokens.empty() || t > tokens.back())) tokens.push_back(t);
  }
  return tokens;
}

void test_matrix(Path path, int rows, int columns, int split, int tokens) {
  SCOPED_TRACE(testing::Message() << rows << " x " << columns << ", " << tokens << " tokens");
  const RandomMatrices w{.experts = 1, .rows = rows, .columns = columns, .seed = 7};
  const DeviceArray<std::uint8_t> packed = on_device(w.pack());
  const std::vector<__half> x = random_halves(static_cast<std::size_t>(tokens) * columns, 3);
  const DeviceArray<__half> x_device = on_device(x);
  constexpr int guard = 128;  // rows that must stay as they are

  const std::vector<int> shown = interesting(tokens);
  std::vector<std::vector<double>> xs;
  for (const int t : shown) xs.push_back(row_of(x, t, columns));
  const std::vector<double> expected = multiply(w, 0, xs);
  const auto at = [&](std::size_t i, int r) {
    return expected[i * static_cast<std::size_t>(rows) + static_cast<std::size_t>(r)];
  };

  // Stored, with a tail in float.
  const int tail = rows - split;
  const auto project_first = [&](int count, std::vector<__half>& y, std::vector<float>& ends) {
    const auto y_device = poisoned<__half>(static_cast<std::size_t>(count + guard) * split);
    const auto tail_device = poisoned<float>(static_cast<std::size_t>(count + guard) * tail);
    if (path == Path::own) {
      project(tiles_of(w, packed), x_device.data(), count,
              {.y = y_device.data(),
               .stride = split,
               .tail = tail > 0 ? tail_device.data() : nullptr,
               .split = split},
              nullptr);
    } else {
      Product p = product_of(w, packed, x_device.data(), count);
      p.y = y_device.data();
      p.stride = split;
      p.tail = tail_device.data();
      p.split = split;
      launch_mma<Epilogue::store>(p, nullptr);
    }
    y = on_host(y_device);
    ends = on_host(tail_device);
  };
  std::vector<__half> y;
  std::vector<float> ends;
  project_first(tokens, y, ends);
  Comparison halves;
  Comparison floats;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    for (int r = 0; r < rows; ++r) {
      const auto t = static_cast<std::size_t>(shown[i]);
      if (r < split) {
        halves.add(shown[i], r, to_float(y[t * split + static_cast<std::size_t>(r)]), at(i, r));
      } else {
        floats.add(shown[i], r, ends[t * tail + static_cast<std::size_t>(r - split)], at(i, r));
      }
    }
  }
  halves.finish("halves", 1e-3);
  if (tail > 0) floats.finish("tail", 3e-5);
  for (std::size_t i = static_cast<std::size_t>(tokens) * split; i < y.size(); ++i)
    ASSERT_TRUE(std::isnan(to_float(y[i]))) << "behind the last token, " << i;
  for (std::size_t i = 0; i < static_cast<std::size_t>(tokens) * split; ++i)
    ASSERT_FALSE(std::isnan(to_float(y[i]))) << "not written: token " << i / split << " row " << i % split;

  // The same to the bit with fewer tokens.
  for (const int fewer : {1, 33, 65, 129}) {
    if (fewer >= tokens) continue;
    std::vector<__half> again;
    std::vector<float> ends_again;
    project_first(fewer, again, ends_again);
    EXPECT_TRUE(same_bits(y.data(), again.data(), static_cast<std::size_t>(fewer) * split * sizeof(__half)))
        << fewer;
    EXPECT_TRUE(
        same_bits(ends.data(), ends_again.data(), static_cast<std::size_t>(fewer) * tail * sizeof(float)))
        << fewer;
  }

  // Added to a residual.
  if (tail == 0) {
    std::vector<float> residual(static_cast<std::size_t>(tokens + guard) * rows);
    std::mt19937 random(5);
    for (float& value : residual) value = std::normal_distribution<float>()(random);
    const DeviceArray<float> residual_device = on_device(residual);
    if (path == Path::own) {
      project_add(tiles_of(w, packed), x_device.data(), tokens, residual_device.data(), nullptr);
    } else {
      Product p = product_of(w, packed, x_device.data(), tokens);
      p.residual = residual_device.data();
      launch_mma<Epilogue::add>(p, nullptr);
    }
    const std::vector<float> sums = on_host(residual_device);
    Comparison added;
    for (std::size_t i = 0; i < shown.size(); ++i) {
      for (int r = 0; r < rows; ++r) {
        const std::size_t place = static_cast<std::size_t>(shown[i]) * rows + static_cast<std::size_t>(r);
        added.add(shown[i], r, sums[place], at(i, r) + residual[place]);
      }
    }
    added.finish("added", 3e-5);
    EXPECT_TRUE(same_bits(&sums[static_cast<std::size_t>(tokens) * rows],
                          &residual[static_cast<std::size_t>(tokens) * rows],
                          static_cast<std::size_t>(guard) * rows * sizeof(float)));
  }
}

TEST(Gemm, MatricesOfTheModel) {
  test_matrix(Path::own, 12352, 2048, 12288, 300);  // in-projection of DeltaNet
  test_matrix(Path::own, 9216, 2048, 9216, 130);    // of attention
  test_matrix(Path::own, 2048, 4096, 2048, 257);    // out-projections
  test_matrix(Path::own, 2048, 4096, 2048, 8);
}
TEST(Gemm, TilesOfEverySize) {
  for (const int tokens : {2, 15, 17, 31, 33, 63, 65, 95, 97, 127, 129, 383, 513, 8193})
    test_matrix(Path::own, 2048, 4096, 2048, tokens);
}
TEST(Gemm, MatricesOfTheDemo) {
  test_matrix(Path::own, 3088, 512, 3072, 385);
  test_matrix(Path::own, 4608, 512, 4608, 64);
  test_matrix(Path::own, 512, 1024, 512, 200);
  test_matrix(Path::own, 512, 2048, 512, 1);
}
TEST(Gemm, MatricesOnAnyGpu) {
  test_matrix(Path::any, 12352, 2048, 12288, 150);
  test_matrix(Path::any, 2048, 4096, 2048, 257);
  test_matrix(Path::any, 3088, 512, 3072, 385);
  test_matrix(Path::any, 512, 2048, 512, 1);
}

/// Experts' SwiGLU and answers over routes in tiles, and the shared expert's over all tokens.
void test_experts(Path path, int hidden, int inner_width, const std::vector<int>& counts) {
  SCOPED_TRACE(testing::Message() << hidden << " x " << inner_width);
  const int experts = static_cast<int>(counts.size());
  const RandomMatrices up{.experts = experts, .rows = 2 * inner_width, .columns = hidden, .seed = 11};
  const RandomMatrices down{.experts = experts, .rows = hidden, .columns = inner_width, .seed = 12};
  const DeviceArray<std::uint8_t> up_packed = on_device(up.pack());
  const DeviceArray<std::uint8_t> down_packed = on_device(down.pack());

  const int tokens = 700;
  const std::vector<__half> x = random_halves(static_cast<std::size_t>(tokens) * hidden, 21);
  const DeviceArray<__half> x_device = on_device(x);
  std::vector<int> token_of;
  std::vector<TokenTile> tiles;
  std::mt19937 random(31);
  std::vector<int> first_of(counts.size());
  for (int e = 0; e < experts; ++e) {
    const int count = counts[static_cast<std::size_t>(e)];
    first_of[static_cast<std::size_t>(e)] = static_cast<int>(token_of.size());
    for (int i = 0; i < count; i += token_tile) {
      tiles.push_back({.expert = e,
                       .first = static_cast<int>(token_of.size()) + i,
                       .count = std::min(token_tile, count - i)});
    }
    for (int i = 0; i < count; ++i) token_of.push_back(static_cast<int>(random() % tokens));
  }
  const auto routes = token_of.size();
  ASSERT_LE(static_cast<int>(tiles.size()), max_route_tiles(static_cast<int>(routes), experts));
  const DeviceArray<int> token_device = on_device(token_of);
  const DeviceArray<TokenTile> tile_device = on_device(tiles);
  const DeviceArray<int> count_device = on_device(std::vector<int>{static_cast<int>(tiles.size())});
  const DeviceArray<int> queue = on_device(std::vector<int>{0, 0});
  const RouteTiles route_tiles{.tokens = token_device.data(),
                               .tiles = tile_device.data(),
                               .count = count_device.data(),
                               .queue = queue.data()};

  const auto inner_device = poisoned<__half>(routes * inner_width);
  const auto answers_device = poisoned<__half>(routes * hidden);
  if (path == Path::own) {
    const auto stack = [&](const RandomMatrices& w, const DeviceArray<std::uint8_t>& packed) {
      return TileStack{.data = reinterpret_cast<const std::byte*>(packed.data()),
                       .experts = experts,
                       .rows = w.rows,
                       .columns = w.columns};
    };
    experts_swiglu(stack(up, up_packed), x_device.data(), route_tiles, inner_device.data(), nullptr);
    experts_answers(stack(down, down_packed), inner_device.data(), route_tiles, answers_device.data(),
                    nullptr);
  } else {
    Product p = product_of(up, up_packed, x_device.data(), 0);
    p.sources = token_device.data();
    p.tiles = tile_device.data();
    p.tile_count = count_device.data();
    p.y = inner_device.data();
    p.stride = inner_width;
    launch_mma<Epilogue::swiglu>(p, nullptr);
    Product q = product_of(down, down_packed, inner_device.data(), 0);
    q.tiles = tile_device.data();
    q.tile_count = count_device.data();
    q.y = answers_device.data();
    q.stride = hidden;
    q.scale = answer_scale / inner_scale;
    launch_mma<Epilogue::store>(q, nullptr);
  }
  const std::vector<__half> inner = on_host(inner_device);
  const std::vector<__half> answers = on_host(answers_device);
  EXPECT_EQ(on_host(queue), (std::vector<int>{0, 0}));

  Comparison inners;
  Comparison outs;
  for (int e = 0; e < experts; ++e) {
    const int count = counts[static_cast<std::size_t>(e)];
    const int first = first_of[static_cast<std::size_t>(e)];
    std::vector<std::vector<double>> xs;
    std::vector<std::vector<double>> inner_rows;
    const std::vector<int> shown = interesting(count);
    for (const int i : shown) {
      xs.push_back(row_of(x, token_of[static_cast<std::size_t>(first + i)], hidden));
      inner_rows.push_back(row_of(inner, first + i, inner_width));
    }
    const std::vector<double> products = multiply(up, e, xs);
    const std::vector<double> expected_answers = multiply(down, e, inner_rows);
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const std::vector<double> expected = swiglu(&products[i * static_cast<std::size_t>(up.rows)], up.rows);
      for (int c = 0; c < inner_width; ++c)
        inners.add(first + shown[i], c, inner_rows[i][static_cast<std::size_t>(c)] / inner_scale,
                   expected[static_cast<std::size_t>(c)]);
      for (int r = 0; r < hidden; ++r) {
        outs.add(first + shown[i], r,
                 to_float(answers[static_cast<std::size_t>(first + shown[i]) * hidden + r]) / answer_scale,
                 expected_answers[i * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(r)] /
                     inner_scale);
      }
    }
  }
  inners.finish("experts, inner", 1e-3);
  outs.finish("experts, answers", 1e-3);
  for (std::size_t i = 0; i < inner.size(); ++i)
    ASSERT_FALSE(std::isnan(to_float(inner[i]))) << "not written " << i;
  for (std::size_t i = 0; i < answers.size(); ++i)
    ASSERT_FALSE(std::isnan(to_float(answers[i]))) << "not written " << i;

  // The first expert alone, as the shared expert of its tokens in order: the same bits as its routes.
  if (path == Path::own && counts[0] > 0) {
    const int count = counts[0];
    std::vector<__half> gathered;
    for (int i = 0; i < count; ++i) {
      const auto* row = &x[static_cast<std::size_t>(token_of[static_cast<std::size_t>(i)]) * hidden];
      gathered.insert(gathered.end(), row, row + hidden);
    }
    const DeviceArray<__half> gathered_device = on_device(gathered);
    const auto inner_again = poisoned<__half>(static_cast<std::size_t>(count) * inner_width);
    const auto answers_again = poisoned<__half>(static_cast<std::size_t>(count) * hidden);
    project_swiglu(tiles_of(up, up_packed), gathered_device.data(), count, inner_again.data(), nullptr);
    project_answers(tiles_of(down, down_packed), inner_again.data(), count, answers_again.data(), nullptr);
    const std::vector<__half> shared = on_host(answers_again);
    EXPECT_TRUE(same_bits(shared.data(), answers.data(), shared.size() * sizeof(__half)));
  }
}

TEST(Gemm, ExpertsOfTheModel) {
  test_experts(Path::own, 2048, 512, {300, 0, 1, 128, 129, 33, 64, 0, 5, 256, 97, 700, 31, 513});
}
TEST(Gemm, ExpertsOfTheDemo) {
  test_experts(Path::own, 512, 64, {3, 0, 128, 200, 65});
  test_experts(Path::own, 512, 128, {140, 7});
}
TEST(Gemm, ExpertsOnAnyGpu) {
  test_experts(Path::any, 2048, 512, {130, 0, 1, 33});
  test_experts(Path::any, 512, 64, {3, 0, 128, 200, 65});
}

TEST(Gemm, LargeProductsAreClamped) {
  const RandomMatrices w{.experts = 1, .rows = 256, .columns = 64, .seed = 1};
  const DeviceArray<std::uint8_t> packed = on_device(w.pack());
  const std::vector<__half> x(64, __float2half(60000.0F));
  const DeviceArray<__half> x_device = on_device(x);
  const auto inner = poisoned<__half>(128);
  project_swiglu(tiles_of(w, packed), x_device.data(), 1, inner.data(), nullptr);
  float largest = 0;
  for (const __half value : on_host(inner)) {
    EXPECT_TRUE(std::isfinite(to_float(value)));
    largest = std::max(largest, std::abs(to_float(value)));
  }
  EXPECT_EQ(largest, 65504.0F);
}

}  // namespace
}  // namespace calla::cuda
