#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "metal/decode_support.h"
#include "metal/kernels/decode_grids.h"

namespace calla::metal {
namespace {

using calla_kernels::experts_down_rows;
using calla_kernels::experts_down_threads;
using calla_kernels::experts_up_rows;
using calla_kernels::experts_up_threads;
using calla_kernels::Route;

constexpr std::size_t choices = Shape::experts_per_token;
constexpr std::size_t kinds = 3;  // different experts of a stack

/// A stack of experts, of which expert e has the weights of e % kinds. Nothing is written to the others of
/// the device's memory than those in use.
struct Stack {
  Stack(unsigned rows, unsigned columns, unsigned seed) {
    for (unsigned i = 0; i < kinds; ++i) matrices.emplace_back(rows, columns, 4, seed + i);
  }
  const TestMatrix& expert(unsigned e) const { return matrices[e % kinds]; }

  std::vector<TestMatrix> matrices;
};

struct DeviceStack {
  DeviceStack(Gpu& gpu, const Stack& stack, int experts, std::span<const unsigned> used)
      : words(place<std::uint32_t>(gpu, stack, experts, used, &TestMatrix::words)),
        scales(place<std::uint16_t>(gpu, stack, experts, used, &TestMatrix::scales)),
        biases(place<std::uint16_t>(gpu, stack, experts, used, &TestMatrix::biases)) {}

  std::unique_ptr<Buffer> words;
  std::unique_ptr<Buffer> scales;
  std::unique_ptr<Buffer> biases;

 private:
  template <class T>
  static std::unique_ptr<Buffer> place(Gpu& gpu, const Stack& stack, int experts,
                                       std::span<const unsigned> used, std::vector<T> TestMatrix::*part) {
    const std::size_t each = (stack.expert(0).*part).size();
    std::unique_ptr<Buffer> buffer = gpu.room<T>(static_cast<std::size_t>(experts) * each);
    for (const unsigned e : used)
      std::copy_n((stack.expert(e).*part).begin(), each, buffer->as<T>().begin() + e * each);
    return buffer;
  }
};

/// Router logits of rows that go to the given experts, in this order, and a logit for the shared expert.
std::vector<float> logits_for(const Shape& shape, const std::vector<std::array<unsigned, choices>>& routes) {
  const auto width = static_cast<std::size_t>(shape.experts) + 1;
  std::vector<float> logits = normal_values(routes.size() * width, -3, 1, 60);
  for (std::size_t r = 0; r < routes.size(); ++r) {
    for (std::size_t i = 0; i < choices; ++i)
      logits[r * width + routes[r][i]] = 4 - 0.5F * static_cast<float>(i);
    logits[r * width + width - 1] = 0.7F - static_cast<float>(r);
  }
  return logits;
}

std::vector<unsigned> all_of(const std::vector<std::array<unsigned, choices>>& routes) {
  std::vector<unsigned> used;
  for (const auto& route : routes) used.insert(used.end(), route.begin(), route.end());
  return used;
}

struct UpResult {
  std::vector<float> inner;  // [rows][8][expert_hidden]
  std::vector<Route> routes;
};

UpResult run_up(const Shape& shape, const Stack& gate, const Stack& up, std::span<const unsigned> used,
                const TestStream& stream, const std::vector<float>& logits) {
  Gpu gpu(shape);
  const DeviceStack gates(gpu, gate, shape.experts, used);
  const DeviceStack ups(gpu, up, shape.experts, used);
  const auto u = gpu.upload(stream.u);
  const auto square_sums = gpu.upload(stream.square_sums);
  const auto router_logits = gpu.upload(logits);
  const auto width = static_cast<std::uint32_t>(shape.expert_hidden);
  const auto inner = gpu.room<float>(stream.rows * choices * width);
  const auto routes = gpu.room<Route>(stream.rows);
  gpu.run("experts_up", experts_up_threads,
          {View(gates.words), View(gates.scales), View(gates.biases), View(ups.words), View(ups.scales),
           View(ups.biases), View(u), View(square_sums), View(router_logits), View(inner), View(routes)},
          {width / experts_up_rows, choices, static_cast<std::uint32_t>(stream.rows)});
  return {values_of<float>(inner), values_of<Route>(routes)};
}

void expect_route(const Route& route, const std::array<unsigned, choices>& experts,
                  std::span<const float> logits) {
  double sum = 0;
  for (const unsigned e : experts) sum += std::exp(double{logits[e]} - logits[experts[0]]);
  for (std::size_t i = 0; i < choices; ++i) {
    EXPECT_EQ(route.expert[i], experts[i]);
    EXPECT_NEAR(route.share[i], std::exp(double{logits[experts[i]]} - logits[experts[0]]) / sum, 1e-6);
  }
  EXPECT_NEAR(route.shared, 1 / (1 + std::exp(-double{logits.back()})), 1e-6);
}

class DecodeExperts : public testing::TestWithParam<Shape> {
 protected:
  const Shape& shape() const { return GetParam(); }
  unsigned last() const { return static_cast<unsigned>(shape().experts) - 1; }
};
INSTANTIATE_TEST_SUITE_P(Models, DecodeExperts, testing::Values(demo, qwen36_35b), model_name);

TEST_P(DecodeExperts, ComputesTheFirstHalfOfTheChosen) {
  const auto width = static_cast<unsigned>(shape().expert_hidden);
  const Stack gate(width, static_cast<unsigned>(shape().hidden), 61);
  const Stack up(width, static_cast<unsigned>(shape().hidden), 65);
  // The first and the last experts, and rows with experts in common.
  const std::vector<std::array<unsigned, choices>> routes{{last(), 0, 5, 1, 7, 20, 2, last() - 1},
                                                          {7, 5, 20, 4, 3, 2, 1, 0}};
  const TestStream stream(shape(), routes.size(), 69);
  const std::vector<float> logits = logits_for(shape(), routes);
  const std::vector<unsigned> used = all_of(routes);
  const UpResult result = run_up(shape(), gate, up, used, stream, logits);
  for (std::size_t r = 0; r < routes.size(); ++r) {
    const std::span<const float> row_logits = row_of(logits, r, logits.size() / routes.size());
    expect_route(result.routes[r], routes[r], row_logits);
    for (std::size_t i = 0; i < choices; ++i) {
      for (unsigned row = static_cast<unsigned>(i); row < width; row += 5) {
        const unsigned e = routes[r][i];
        const SwigluValue expected(gate.expert(e), up.expert(e), row, stream, r);
        ASSERT_NEAR(result.inner[(r * choices + i) * width + row], expected.value, expected.tolerance)
            << "row " << row << " of expert " << e << ", row " << r;
      }
    }
    const UpResult alone = run_up(shape(), gate, up, used, stream.row(r),
                                  std::vector<float>(row_logits.begin(), row_logits.end()));
    EXPECT_TRUE(same_row(result.inner, routes.size(), r, alone.inner)) << r;
  }
}

TEST_P(DecodeExperts, TakesTheLowerIdAmongEqualLogits) {
  const auto width = static_cast<unsigned>(shape().expert_hidden);
  const Stack gate(width, static_cast<unsigned>(shape().hidden), 71);
  const TestStream stream(shape(), 3, 72);
  const std::size_t logits_width = last() + 2;
  std::vector<float> logits(3 * logits_width, 0.0F);  // all equal in row 0
  const auto row = [&](std::size_t r) { return std::span(logits).subspan(r * logits_width, logits_width); };
  // Two of the best tie, so do eight for the last four places; negative zero equals zero.
  std::fill(row(1).begin(), row(1).end(), -50.0F);
  for (const unsigned e : {9U, 3U}) row(1)[e] = 2;
  for (const unsigned e : {12U, 10U}) row(1)[e] = e == 10 ? -0.0F : 0.0F;
  for (unsigned e = 0; e < 8; ++e) row(1)[last() - 2 * e] = -1;
  row(1)[last()] = -1;
  // Large ones: the softmax must not overflow.
  for (unsigned e = 0; e <= last(); ++e) row(2)[e] = 1e4F + static_cast<float>(e % 16);
  std::vector<std::array<unsigned, choices>> routes(3);
  for (std::size_t r = 0; r < routes.size(); ++r) {
    std::vector<unsigned> order(last() + 1);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](unsigned a, unsigned b) { return row(r)[a] > row(r)[b]; });
    std::copy_n(order.begin(), choices, routes[r].begin());
  }
  const UpResult result = run_up(shape(), gate, gate, all_of(routes), stream, logits);
  for (std::size_t r = 0; r < routes.size(); ++r) expect_route(result.routes[r], routes[r], row(r));
}

StreamResult run_down(const Shape& shape, const Stack& down, const TestMatrix& shared,
                      std::span<const unsigned> used, const TestStream& stream,
                      const std::vector<float>& inner, const std::vector<float>& shared_inner,
                      const std::vector<Route>& routes) {
  Gpu gpu(shape);
  const DeviceStack stack(gpu, down, shape.experts, used);
  const DeviceMatrix shared_down(gpu, shared);
  const auto x = gpu.upload(inner);
  const auto shared_x = gpu.upload(shared_inner);
  const auto route = gpu.upload(routes);
  const auto h = gpu.upload(stream.h);
  const auto gain = gpu.upload(stream.gain);
  const auto u = gpu.room<float>(stream.u.size());
  const auto square_sums = gpu.room<float>(stream.square_sums.size());
  gpu.run("experts_down", experts_down_threads,
          {View(stack.words), View(stack.scales), View(stack.biases), View(shared_down.words),
           View(shared_down.scales), View(shared_down.biases), View(x), View(shared_x), View(route), View(h),
           View(gain), View(u), View(square_sums)},
          {static_cast<std::uint32_t>(shape.hidden) / experts_down_rows,
           static_cast<std::uint32_t>(stream.rows)});
  return {values_of<float>(h), values_of<float>(u), values_of<float>(square_sums)};
}

TEST_P(DecodeExperts, AddsTheSecondHalvesToTheStream) {
  const auto hidden = static_cast<unsigned>(shape().hidden);
  const auto width = static_cast<std::size_t>(shape().expert_hidden);
  const auto shared_width = static_cast<std::size_t>(shape().shared_expert_hidden);
  const Stack down(hidden, static_cast<unsigned>(width), 81);
  const TestMatrix shared(hidden, static_cast<unsigned>(shared_width), 4, 85);
  const std::vector<std::array<unsigned, choices>> experts{{last(), 0, 5, 1, 7, 20, 2, last() - 1},
                                                           {7, 5, 20, 4, 3, 2, 1, 0}};
  const std::size_t rows = experts.size();
  std::vector<Route> routes(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < choices; ++i) {
      routes[r].expert[i] = experts[r][i];
      routes[r].share[i] = 0.05F + 0.02F * static_cast<float>(i + r);
    }
    routes[r].shared = 0.3F + 0.2F * static_cast<float>(r);
  }
  const TestStream stream(shape(), rows, 86);
  const std::vector<float> inner = normal_values(rows * choices * width, 0, 1, 88);
  const std::vector<float> shared_inner = normal_values(rows * shared_width, 0, 1, 89);
  const std::vector<unsigned> used = all_of(experts);
  const StreamResult result = run_down(shape(), down, shared, used, stream, inner, shared_inner, routes);
  result.expect_consistent(stream.gain);
  for (std::size_t r = 0; r < rows; ++r) {
    for (unsigned row = 0; row < hidden; row += 5) {
      const Product of_shared(shared, row, row_of(shared_inner, r, shared_width));
      double expected = stream.h[r * hidden + row] + routes[r].shared * of_shared.value;
      double tolerance = routes[r].shared * of_shared.tolerance;
      for (std::size_t i = 0; i < choices; ++i) {
        const Product product(down.expert(experts[r][i]), row, row_of(inner, r * choices + i, width));
        expected += double{routes[r].share[i]} * product.value;
        tolerance += double{routes[r].share[i]} * product.tolerance;
      }
      ASSERT_NEAR(result.h[r * hidden + row], expected, tolerance + 1e-6 * std::abs(expected))
          << row << " of " << r;
    }
    const auto own = [&](const std::vector<float>& values) {
      const std::span<const float> cut = row_of(values, r, values.size() / rows);
      return std::vector<float>(cut.begin(), cut.end());
    };
    const StreamResult alone =
        run_down(shape(), down, shared, used, stream.row(r), own(inner), own(shared_inner), {routes[r]});
    EXPECT_TRUE(same_row(result.h, rows, r, alone.h)) << r;
  }
}

}  // namespace
}  // namespace calla::metal
