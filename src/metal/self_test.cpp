#include "metal/self_test.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "metal/encode.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/weights.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

constexpr std::string_view report = "please report it, as docs/metal.md says";

template <class T>
std::unique_ptr<Buffer> upload(Device& device, const std::vector<T>& values) {
  std::unique_ptr<Buffer> buffer = device.allocate(values.size() * sizeof(T), Hazards::tracked);
  std::copy(values.begin(), values.end(), buffer->as<T>().begin());
  return buffer;
}

/// Room for results, none of which is -1.
std::unique_ptr<Buffer> room(Device& device, std::size_t count) {
  return upload(device, std::vector<float>(count, -1.0F));
}

template <class... Parts>
void run(Device& device, const std::unique_ptr<Pipeline>& kernel, Grid grid, const Parts&... parts) {
  const std::unique_ptr<Pass> pass = device.begin();
  dispatch(*pass, kernel, grid, parts...);
  pass->commit();
  pass->wait();
}

/// What is wrong with results, of which `expected` says each; empty where nothing is.
template <class T, class Expected>
std::string fault_in(std::span<const T> results, Expected expected) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const T right = expected(i);
    if (results[i] != right) return fmt::format("result {} is {} and must be {}", i, results[i], right);
  }
  return {};
}

void require_neighbours(Device& device) {
  constexpr std::uint32_t threads = 256;
  const std::unique_ptr<Buffer> places = upload(device, std::vector<std::uint32_t>(threads, 0));
  run(device, device.pipeline("simd_places", threads), {}, places);
  const std::string fault = fault_in<std::uint32_t>(
      places->as<const std::uint32_t>(), [](std::size_t i) { return static_cast<std::uint32_t>(i); });
  if (!fault.empty())
    throw Error(device.name(), "has SIMD-groups that are not 32 neighbouring threads: " + fault, report);
}

void require_matrix_layout(Device& device) {
  constexpr std::size_t side = 8;
  std::vector<float> x(side * side);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(37 * i % 64);
  const auto product = [&](std::size_t i) {
    float sum = x[i];
    for (std::size_t k = 0; k < side; ++k) sum += x[i / side * side + k] * x[i % side * side + k];
    return sum;
  };
  const auto given = [&](std::size_t i) { return x[i]; };

  const std::unique_ptr<Buffer> loaded = room(device, x.size());
  const std::unique_ptr<Buffer> stored = room(device, x.size());
  const std::unique_ptr<Buffer> products = room(device, x.size());
  run(device, device.pipeline("matrix_elements", 32), {}, upload(device, x), loaded, stored, products);
  std::string fault = fault_in<float>(loaded->as<const float>(), given);
  if (fault.empty()) fault = fault_in<float>(stored->as<const float>(), given);
  if (fault.empty()) fault = fault_in<float>(products->as<const float>(), product);
  if (!fault.empty())
    throw Error(device.name(), "lays matrices out over a SIMD-group as no known GPU does: " + fault, report);
}

/// A product of integers, which bfloat16 holds as exactly as float32 holds their sums, in any order; most of
/// these are too large for a sum in less. x: 0 to 255. W: codes times 1 or 2, and a bias from 0 to 3.
class KnownProduct {
 public:
  KnownProduct(Device& device, unsigned rows, unsigned columns, unsigned outputs)
      : columns_(columns), x_(std::size_t{rows} * columns), weights_(std::size_t{outputs} * columns) {
    std::minstd_rand random(1);
    for (float& value : x_) value = static_cast<float>(random() >> 8U & 255U);
    std::vector<std::uint32_t> words(weights_.size() / 8);
    std::vector<std::uint16_t> scales(weights_.size() / 64);
    std::vector<std::uint16_t> biases(scales.size());
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const std::size_t group = i / 64;
      const auto code = static_cast<std::uint32_t>(random() >> 8U & 15U);
      words[i / 8] |= code << 4 * (i % 8);
      const std::uint32_t scale = group % 3 == 0 ? 1 : 2;
      const auto bias = static_cast<std::uint32_t>(group % 4);
      scales[group] = bfloat16.at(scale);
      biases[group] = bfloat16.at(bias);
      weights_[i] = static_cast<float>(code * scale + bias);
    }
    x_there_ = upload(device, x_);
    words_ = upload(device, words);
    scales_ = upload(device, scales);
    biases_ = upload(device, biases);
  }

  MatrixView matrix() const { return {words_, scales_, biases_, 0}; }
  const std::unique_ptr<Buffer>& x() const { return x_there_; }
  float result(std::size_t row, std::size_t output) const {
    float sum = 0;
    for (std::size_t i = 0; i < columns_; ++i)
      sum += x_[row * columns_ + i] * weights_[output * columns_ + i];
    return sum;
  }

 private:
  static constexpr std::array<std::uint16_t, 4> bfloat16{0, 0x3f80, 0x4000, 0x4040};  // 0 to 3

  std::size_t columns_;
  std::vector<float> x_;
  std::vector<float> weights_;
  std::unique_ptr<Buffer> x_there_;
  std::unique_ptr<Buffer> words_;
  std::unique_ptr<Buffer> scales_;
  std::unique_ptr<Buffer> biases_;
};

/// Tiles of 64 rows, some of them ragged.
std::string fault_in_tall_tiles(Device& device) {
  constexpr std::string_view kernel = "gemm_tensor";
  constexpr unsigned rows = 70;
  constexpr unsigned columns = 128;
  constexpr unsigned outputs = 72;
  const KnownProduct product(device, rows, columns, outputs);
  const std::unique_ptr<Buffer> out = room(device, std::size_t{rows} * outputs);
  run(device, device.pipeline(kernel, gemm_threads), {tiles(rows, 64), tiles(outputs, gemm_columns)},
      product.matrix(), product.x(), out, GemmArguments{rows, columns, outputs});
  const std::string fault = fault_in<float>(
      out->as<const float>(), [&](std::size_t i) { return product.result(i / outputs, i % outputs); });
  return fault.empty() ? fault : fmt::format("{}: {}", kernel, fault);
}

/// Tiles of 32 rows: a block of an expert's, of which the first tile of outputs is computed, the last row
/// first.
std::string fault_in_low_tiles(Device& device, const Shape& shape) {
  constexpr std::string_view kernel = "experts_down_rows_tensor";
  constexpr unsigned rows = 24;
  const auto hidden = static_cast<unsigned>(shape.hidden);
  const KnownProduct product(device, rows, static_cast<unsigned>(shape.expert_hidden), gemm_columns);
  std::vector<unsigned> pairs(rows);
  for (unsigned i = 0; i < rows; ++i) pairs[i] = rows - 1 - i;
  const std::unique_ptr<Buffer> out = room(device, std::size_t{rows} * hidden);
  run(device, device.pipeline(kernel, gemm_threads), {}, product.matrix(), product.x(), upload(device, pairs),
      upload(device, std::vector<Block>{{0, 0, rows}}), out);
  const std::string fault = fault_in<float>(out->as<const float>(), [&](std::size_t i) {
    return i % hidden < gemm_columns ? product.result(rows - 1 - i / hidden, i % hidden) : -1.0F;
  });
  return fault.empty() ? fault : fmt::format("{}: {}", kernel, fault);
}

std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

}  // namespace

void require_simd_groups(Device& device) {
  require_neighbours(device);
  require_matrix_layout(device);
}

TensorUnits examine_tensor_units(Device& device, const Shape& shape) {
  if (!device.has_tensor_units()) return {};
  TensorUnits units;
  try {
    for (const std::string_view kernel :
         {"gemm_tensor_project", "gemm_tensor_add", "shared_gate_up_tensor", "experts_gate_up_tensor"})
      device.pipeline(kernel, gemm_threads);
    units.fault = fault_in_tall_tiles(device);
    if (units.fault.empty()) units.fault = fault_in_low_tiles(device, shape);
  } catch (const Error& error) {
    units.fault = first_line(error.what());
  }
  units.used = units.fault.empty();
  return units;
}

std::string describe(const Device& device, const TensorUnits& units) {
  if (units.used) return fmt::format("{} with tensor units", device.name());
  if (units.fault.empty()) return std::string(device.name());
  return fmt::format("{} without its tensor units ({}; {})", device.name(), units.fault, report);
}

}  // namespace calla::metal
