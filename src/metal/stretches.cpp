#include "metal/stretches.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

namespace calla::metal {
namespace {

struct Part {
  std::span<const std::byte> bytes;
  bool aligned = true;
};

/// Where the file begins that a part is of. Files may be mapped one right behind the other, but Metal takes
/// memory of one mapping only, and each file has an alignment of its own.
const std::byte* file_of(const Part& part, const Weights& weights) {
  return weights.pages == nullptr ? nullptr : weights.pages->mapping(part.bytes).data();
}

constexpr std::uintptr_t word_alignment = 16;  // kernels load four words at once
constexpr std::uintptr_t value_alignment = 2;
// What lies between two tensors of a file and is not used, the vision tower say, need not be mapped; a
// smaller gap is not worth another buffer.
constexpr std::size_t largest_gap = std::size_t{16} << 20;

std::uintptr_t address(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }

void add(std::vector<Part>& parts, const AffineMatrix& matrix) {
  const auto on = [](std::span<const std::byte> bytes, std::uintptr_t alignment) {
    return address(bytes.data()) % alignment == 0;
  };
  parts.push_back({matrix.words, on(matrix.words, word_alignment)});
  parts.push_back({matrix.scales, on(matrix.scales, value_alignment)});
  parts.push_back({matrix.biases, on(matrix.biases, value_alignment)});
}

std::vector<Part> tensors(const Weights& weights) {
  std::vector<Part> parts;
  add(parts, weights.embedding);
  add(parts, weights.head);
  for (const LayerWeights& layer : weights.layers) {
    if (const auto* delta = std::get_if<DeltaNetWeights>(&layer.mixer)) {
      for (const auto* m : {&delta->qkv, &delta->z, &delta->a, &delta->b, &delta->out}) add(parts, *m);
    } else {
      const auto& attention = std::get<AttentionWeights>(layer.mixer);
      for (const auto* m : {&attention.q, &attention.k, &attention.v, &attention.o}) add(parts, *m);
    }
    const MoeWeights& moe = layer.moe;
    for (const auto* m : {&moe.router, &moe.gate.all, &moe.up.all, &moe.down.all, &moe.shared.gate,
                          &moe.shared.up, &moe.shared.down, &moe.shared_gate})
      add(parts, *m);
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return address(a.bytes.data()) < address(b.bytes.data()); });
  return parts;
}

}  // namespace

std::vector<Stretch> find_stretches(const Weights& weights, std::size_t most_bytes) {
  std::vector<Stretch> stretches;
  const std::byte* last_file = nullptr;
  for (const Part& part : tensors(weights)) {
    const std::uintptr_t first = address(part.bytes.data());
    const std::uintptr_t end = first + part.bytes.size();
    const std::byte* const file = file_of(part, weights);
    const bool in_same_file = file == std::exchange(last_file, file);
    if (!stretches.empty() && in_same_file) {
      Stretch& last = stretches.back();
      const std::uintptr_t begin = address(last.bytes.data());
      const std::uintptr_t last_end = begin + last.bytes.size();
      // Made-up weights may overlap.
      const std::uintptr_t new_end = std::max(end, last_end);
      if (first <= last_end + largest_gap && new_end - begin <= most_bytes) {
        last.bytes = {last.bytes.data(), new_end - begin};
        last.parts.push_back(part.bytes);
        last.aligned = last.aligned && part.aligned;
        continue;
      }
    }
    stretches.push_back({part.bytes, {part.bytes}, part.aligned});
  }
  return stretches;
}

}  // namespace calla::metal
