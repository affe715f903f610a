#include "metal/turns.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "model/shape.h"

namespace calla::metal {

namespace {
constexpr int pairs = Shape::rotary_dim / 2;
}

std::size_t turns_bytes(int context) { return static_cast<std::size_t>(context) * pairs * 2 * sizeof(float); }

std::unique_ptr<Buffer> make_turns(Device& device, int context) {
  std::array<double, pairs> frequency{};
  for (int j = 0; j < pairs; ++j)
    frequency.at(static_cast<std::size_t>(j)) = std::pow(rope_theta, -static_cast<double>(j) / pairs);
  auto buffer = device.allocate(turns_bytes(context), Hazards::untracked);
  const auto turns = buffer->as<float>();
  std::size_t at = 0;
  for (int position = 0; position < context; ++position) {
    for (const double each : frequency) {
      turns[at++] = static_cast<float>(std::cos(position * each));
      turns[at++] = static_cast<float>(std::sin(position * each));
    }
  }
  return buffer;
}

}  // namespace calla::metal
