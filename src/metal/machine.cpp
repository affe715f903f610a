#include "metal/machine.h"

#include <algorithm>
#include <cstring>

#include "metal/encode.h"
#include "metal/kernels/machine_arguments.h"

namespace calla::metal {
namespace {

using namespace calla_kernels;

constexpr int repetitions = 6;  // the first ones find a clock that is still low
// Enough that no cache holds it and the start of a pass is nothing beside it; on every GPU enough
// threadgroups.
constexpr std::size_t read_bytes = std::size_t{1} << 30;
constexpr std::uint32_t read_groups = 4096;
constexpr std::uint32_t product_groups = 2048;
constexpr std::uint32_t product_rounds = 4096;

template <class Encode>
double shortest_seconds(Device& device, Encode encode) {
  double shortest = 0;
  for (int i = 0; i < repetitions; ++i) {
    const std::unique_ptr<Pass> pass = device.begin();
    encode(*pass);
    pass->commit();
    pass->wait();
    shortest = i == 0 ? pass->seconds() : std::min(shortest, pass->seconds());
  }
  return shortest;
}

}  // namespace

double read_bandwidth(Device& device) {
  const std::size_t bytes = std::min<std::size_t>(read_bytes, device.max_buffer());
  const std::unique_ptr<Pipeline> kernel = device.pipeline("read_words", read_threads);
  const std::unique_ptr<Buffer> words = device.allocate(bytes, Hazards::untracked);
  const std::unique_ptr<Buffer> sums =
      device.allocate(sizeof(std::uint32_t) * read_groups * read_threads, Hazards::tracked);
  std::memset(words->bytes().data(), 1, bytes);
  const ReadArguments args{static_cast<unsigned>(bytes / 16)};
  const double seconds =
      shortest_seconds(device, [&](Pass& pass) { dispatch(pass, kernel, {read_groups}, words, sums, args); });
  return static_cast<double>(bytes) / seconds;
}

double product_peak(Device& device) {
  constexpr std::uint32_t simd_groups = product_groups * product_threads / 32;
  constexpr std::uint32_t tile = 8;
  const std::unique_ptr<Pipeline> kernel = device.pipeline("multiply_tiles", product_threads);
  const std::unique_ptr<Buffer> out =
      device.allocate(sizeof(float) * tile * tile * simd_groups, Hazards::tracked);
  const ProductArguments args{product_rounds};
  const double seconds =
      shortest_seconds(device, [&](Pass& pass) { dispatch(pass, kernel, {product_groups}, out, args); });
  const double products = double{product_rounds} * simd_groups * std::uint32_t{product_chains};
  return 2 * tile * tile * tile * products / seconds;
}

}  // namespace calla::metal
