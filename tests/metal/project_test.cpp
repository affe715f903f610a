#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "metal/decode_support.h"
#include "metal/kernels/decode_grids.h"

namespace calla::metal {
namespace {

using calla_kernels::project_rows;
using calla_kernels::project_threads;
using calla_kernels::ProjectArguments;

/// Four matrices, of which the last may have no rows.
struct Matrices {
  Matrices(const Shape& shape, std::array<unsigned, 4> rows) {
    for (const unsigned count : rows) {
      matrices.emplace_back(count, static_cast<unsigned>(shape.hidden), 4,
                            static_cast<unsigned>(matrices.size()) + 1);
      end += count;
      args.ends[matrices.size() - 1] = end;
    }
  }

  std::vector<float> run(const Shape& shape, const TestStream& stream) const {
    Gpu gpu(shape);
    std::vector<DeviceMatrix> on_device;
    for (const TestMatrix& matrix : matrices) {
      // A matrix that is not there is bound to another one.
      const bool there = matrix.rows > 0;
      on_device.emplace_back(gpu, there ? matrix : matrices.at(2));
    }
    const auto u = gpu.upload(stream.u);
    const auto square_sums = gpu.upload(stream.square_sums);
    const auto out = gpu.room<float>(stream.rows * end);
    std::vector<Argument> arguments;
    for (const DeviceMatrix& matrix : on_device)
      for (const auto* part : {&matrix.words, &matrix.scales, &matrix.biases})
        arguments.emplace_back(View(*part));
    for (const View& view : {View(u), View(square_sums), View(out)}) arguments.emplace_back(view);
    arguments.emplace_back(constants(args));
    const std::string kernel = variant("project", stream.rows);
    gpu.run({{{kernel, project_threads, arguments, {end / project_rows}}}});
    return values_of<float>(out);
  }

  /// Of every step-th row of each matrix, and the last.
  void expect_products(const TestStream& stream, const std::vector<float>& out, unsigned step = 1) const {
    for (std::size_t r = 0; r < stream.rows; ++r) {
      const double norm = stream.norm(r);
      std::size_t place = r * end;
      for (const TestMatrix& matrix : matrices) {
        for (unsigned row = 0; row < matrix.rows; ++row, ++place) {
          if (row % step != 0 && row + 1 != matrix.rows) continue;
          const Product product(matrix, row, stream.u_row(r));
          const double expected = norm * product.value;
          // The norm's sum of squares and root: a few roundings.
          ASSERT_NEAR(out[place], expected, norm * product.tolerance + 1e-6 * std::abs(expected))
              << "row " << row << " of " << r;
        }
      }
    }
  }

  std::vector<TestMatrix> matrices;
  ProjectArguments args{};
  unsigned end = 0;
};

class Project : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Models, Project, testing::Values(demo, qwen36_35b), model_name);

unsigned count(int extent) { return static_cast<unsigned>(extent); }

TEST_P(Project, GivesWhatAMixerTakes) {
  const Shape& s = GetParam();
  const std::array<unsigned, 4> delta{count(s.convolution_channels()), count(s.delta_value_dim()),
                                      count(s.delta_value_heads), count(s.delta_value_heads)};
  const std::array<unsigned, 4> attention{count(2 * s.attention_dim()), count(s.kv_dim()), count(s.kv_dim()),
                                          0};
  for (const auto& rows : {delta, attention}) {
    const Matrices matrices(s, rows);
    const TestStream stream(s, 1, 10);
    matrices.expect_products(stream, matrices.run(s, stream), 13);
  }
}

TEST_P(Project, MultipliesByThreeMatricesForAnyNumberOfRows) {
  const Shape& shape = GetParam();
  const Matrices matrices(shape, {64, 16, 16, 0});
  for (const std::size_t rows : {1U, 2U, 4U}) {
    const TestStream stream(shape, rows, 20);
    const std::vector<float> out = matrices.run(shape, stream);
    matrices.expect_products(stream, out);
    // What runs beside a row does not change its bits.
    for (std::size_t r = 0; rows > 1 && r < rows; ++r)
      EXPECT_TRUE(same_row(out, rows, r, matrices.run(shape, stream.row(r)))) << r << " of " << rows;
  }
}

}  // namespace
}  // namespace calla::metal
