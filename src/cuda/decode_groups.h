// Rows of a step that go to the same expert, together: its weights are read once for all of them.
#pragma once
#include <cstdint>

#include "cuda/tiles.h"
#include "model/shape.h"

namespace calla::cuda {

inline constexpr int most_rows = 16;
inline constexpr int group_rows = 4;

/// Up to four rows of an expert, in ascending order. A pick is 8 * row + the place of the expert among the
/// eight of the row.
struct alignas(8) ExpertGroup {
  std::uint16_t expert;
  std::uint16_t count;
  std::uint8_t picks[group_rows];
};
inline constexpr int most_groups = most_rows * Shape::experts_per_token;

/// The groups of a step, those of an expert one behind the other, experts in ascending order.
struct alignas(16) Groups {
  ExpertGroup of[most_groups];
  float shares[most_groups];  // of a pick
  int count;
};

/// Of `total` things that `sharers` blocks have in even shares, one behind the other, where a block's begin;
/// the next block's are where its own end.
constexpr int first_of_share(int total, int sharers, int block) { return total * block / sharers; }

/// How warps share the columns of a down projection: each has up to four groups of 64.
template <int K>
struct DownParts {
  static constexpr int most_groups_of_part = 4;
  static constexpr int groups = K / tile_columns;
  static constexpr int groups_of_part = groups < most_groups_of_part ? groups : most_groups_of_part;
  static constexpr int warps = groups / groups_of_part;
};

}  // namespace calla::cuda
