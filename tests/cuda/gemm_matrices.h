// Random 4-bit matrices that are made of hashes, so that any weight can be asked for without the rest, and a
// packer of tiles that was written from the words of tiles.h alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace calla::cuda {

inline std::uint64_t hash(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// The upper half of a float, cut off.
inline std::uint16_t bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}
inline float from_bf16(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

/// Experts of random matrices, a code or scale a function of its place.
struct RandomMatrices {
  int experts;
  int rows;
  int columns;
  std::uint64_t seed;

  std::uint64_t at(int expert, int row, int index) const {
    return hash(hash(seed + (static_cast<std::uint64_t>(expert) << 32) + static_cast<std::uint64_t>(row)) +
                static_cast<std::uint64_t>(index));
  }
  unsigned code(int expert, int row, int column) const {
    return static_cast<unsigned>(at(expert, row, column / 16) >> (column % 16 * 4)) & 15U;
  }
  std::uint16_t scale(int expert, int row, int group) const {
    const std::uint64_t h = at(expert, row, 1'000'000 + group);
    const float size = 0.002F + 0.01F * static_cast<float>(h & 1023U) / 1024;
    return bf16((h & 1024U) != 0 ? size : -size);
  }
  std::uint16_t bias(int expert, int row, int group) const {
    const std::uint64_t h = at(expert, row, 2'000'000 + group);
    return bf16(-from_bf16(scale(expert, row, group)) * (7 + static_cast<float>(h & 1023U) / 1024));
  }
  void row_of(int expert, int row, std::vector<double>& w) const {
    w.resize(static_cast<std::size_t>(columns));
    for (int c = 0; c < columns; ++c) {
      w[static_cast<std::size_t>(c)] =
          from_bf16(scale(expert, row, c / 64)) * static_cast<double>(code(expert, row, c)) +
          from_bf16(bias(expert, row, c / 64));
    }
  }

  /// In the form of tiles.h, written down from its words.
  std::vector<std::uint8_t> pack() const {
    const std::size_t tiles_across = static_cast<std::size_t>(columns / 64);
    const std::size_t tiles_down = static_cast<std::size_t>(rows / 16);
    std::vector<std::uint8_t> out(static_cast<std::size_t>(experts) * tiles_down * tiles_across * 576);
    const auto pack_strip = [&](std::size_t strip) {
      const int expert = static_cast<int>(strip / tiles_down);
      const int first_row = static_cast<int>(strip % tiles_down) * 16;
      for (std::size_t tile = 0; tile < tiles_across; ++tile) {
        std::uint8_t* to = out.data() + (strip * tiles_across + tile) * 576;
        const int first_column = static_cast<int>(tile) * 64;
        for (int lane = 0; lane < 32; ++lane) {
          const int g = lane / 4;
          const int t = lane % 4;
          for (int h = 0; h < 4; ++h) {
            const int k = 16 * h + 2 * t;
            const int places[8][2] = {{g, k},     {g + 8, k},     {g, k + 8}, {g + 8, k + 8},
                                      {g, k + 1}, {g + 8, k + 1}, {g, k + 9}, {g + 8, k + 9}};
            std::uint32_t word = 0;
            for (int i = 0; i < 8; ++i)
              word |= code(expert, first_row + places[i][0], first_column + places[i][1]) << (4 * i);
            std::memcpy(to + 16 * lane + 4 * h, &word, 4);
          }
        }
        for (int g = 0; g < 8; ++g) {
          const std::uint16_t pairs[4] = {scale(expert, first_row + g, static_cast<int>(tile)),
                                          bias(expert, first_row + g, static_cast<int>(tile)),
                                          scale(expert, first_row + g + 8, static_cast<int>(tile)),
                                          bias(expert, first_row + g + 8, static_cast<int>(tile))};
          std::memcpy(to + 512 + 8 * g, pairs, 8);
        }
      }
    };
    const std::size_t strips = static_cast<std::size_t>(experts) * tiles_down;
    const std::size_t workers = std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::thread> threads;
    for (std::size_t worker = 0; worker < workers; ++worker) {
      threads.emplace_back([&, worker] {
        for (std::size_t strip = worker; strip < strips; strip += workers) pack_strip(strip);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return out;
  }
};

}  // namespace calla::cuda
