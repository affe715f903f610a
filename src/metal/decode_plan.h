// What one decoded token takes, counted from the dispatches that the backend encodes, and what that implies
// for chips that nobody here has measured.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/shape.h"

namespace calla::metal {

/// All dispatches of one kernel.
struct KernelPlan {
  std::string kernel;
  int dispatches = 0;
  std::uint64_t threadgroups = 0;
  double bytes = 0;  // of weights, states, keys and values; activations stay in caches
};

struct DecodePlan {
  int context = 0;  // positions, the new token's included
  int dispatches = 0;
  int levels = 0;            // what barriers divide the pass into
  int streaming_levels = 0;  // those that move a quarter of a megabyte or more
  std::uint64_t threadgroups = 0;
  double bytes = 0;
  std::vector<KernelPlan> kernels;  // in the order of their first dispatch
};

/// A greedy step of one slot that comes to `context` positions.
DecodePlan plan_decode(const Shape& shape, int context);

struct Chip {
  std::string_view name;
  double bandwidth;  // bytes a second that published measurements have reached
};
std::span<const Chip> chips();

/// Seconds a token by a model, not a measurement: the bytes at the chip's bandwidth, and for each level what
/// a barrier costs by published measurements of M3 to M5: 4 us where the level streams from memory, 2.5 us
/// where it does not.
double predicted_seconds(const DecodePlan& plan, const Chip& chip);

}  // namespace calla::metal
