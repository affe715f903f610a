// Rows that go to experts, and their groups on the device.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "metal/kernels/arguments.h"
#include "metal/kernels/prefill_arguments.h"
#include "metal/prefill_support.h"

namespace calla::metal {

using namespace calla_kernels;

/// The experts of a stack that the tests send rows to; the kernels see only these.
constexpr unsigned used_experts = 9;

/// Rows, and where they go.
struct Rows {
  Rows(const Shape& shape, unsigned row_count, unsigned seed)
      : count(row_count),
        hidden(static_cast<unsigned>(shape.hidden)),
        x(normal_values(index(row_count) * hidden, 0, 1, seed)),
        routes(row_count) {
    std::mt19937 random(seed);
    for (Route& route : routes) {
      std::array<unsigned, used_experts> ids{};
      for (unsigned e = 0; e < used_experts; ++e) ids.at(e) = e;
      std::shuffle(ids.begin(), ids.end(), random);
      std::copy_n(ids.begin(), 8, route.expert);
      for (float& share : route.share) share = static_cast<float>(random() % 1000) / 4000.0F;
      route.shared = static_cast<float>(random() % 1000) / 1000.0F;
    }
  }

  unsigned count;
  unsigned hidden;
  std::vector<float> x;
  std::vector<Route> routes;
};

/// The pairs by expert, and their blocks, on the device.
struct Groups {
  Groups(Gpu& gpu, const Rows& rows, const Shape& shape, unsigned tile_rows) : tile(tile_rows) {
    places = group_blocks(rows.count, tile, static_cast<unsigned>(shape.experts));
    pairs = gpu.room<unsigned>(8 * index(rows.count));
    blocks = gpu.room<Block>(places);
    gpu.run("sort_pairs", sort_threads,
            {gpu.upload(rows.routes), pairs, blocks, constants(SortArguments{rows.count, tile, places})},
            Grid{1});
  }

  unsigned tile;
  unsigned places;
  std::unique_ptr<Buffer> pairs;
  std::unique_ptr<Buffer> blocks;
};

/// silu(gate) * up of one row, and what it may be off by: each factor as its sum may be, silu's slope is
/// below 1.1, and exp, the quotient and the product round.
struct Gated {
  Gated(std::span<const float> x, const TestMatrix& gate, const TestMatrix& up, unsigned row,
        Operands operands = Operands::exact) {
    const Dot g(x, gate.row(row), operands);
    const Dot u(x, up.row(row), operands);
    value = silu_of(g.value) * u.value;
    tolerance = 1.1 * g.tolerance * std::abs(u.value) + std::abs(silu_of(g.value)) * u.tolerance +
                2e-6 * std::abs(value);
  }
  double value;
  double tolerance;
};

/// The first `columns` of each row of a buffer [..][width], row s of it to place places[s].
inline std::vector<float> scattered(const std::unique_ptr<Buffer>& rows, std::size_t width,
                                    std::size_t columns, const std::vector<unsigned>& places) {
  std::vector<float> to(places.size() * columns);
  for (std::size_t s = 0; s < places.size(); ++s) {
    std::copy_n(rows->as<float>().begin() + static_cast<std::ptrdiff_t>(s * width), columns,
                to.begin() + static_cast<std::ptrdiff_t>(places[s] * columns));
  }
  return to;
}
/// Row places[s] of [..][width] to row s.
inline std::vector<float> gathered(const std::vector<float>& rows, std::size_t width,
                                   const std::vector<unsigned>& places) {
  std::vector<float> to;
  for (const unsigned place : places) {
    const std::span<const float> row = row_of(rows, place, width);
    to.insert(to.end(), row.begin(), row.end());
  }
  return to;
}
/// The first `columns` of each row of a buffer [rows][width].
inline std::vector<float> first_columns(const std::unique_ptr<Buffer>& buffer, std::size_t rows,
                                        std::size_t width, std::size_t columns) {
  std::vector<unsigned> places(rows);
  for (unsigned i = 0; i < rows; ++i) places[i] = i;
  return scattered(buffer, width, columns, places);
}

}  // namespace calla::metal
