#include "cuda/pack.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "checkpoint/synthetic.h"
#include "cuda/device.h"
#include "cuda/upload.h"
#include "support/support.h"

namespace calla::cuda {
namespace {

std::uint16_t bf16_at(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}

/// An element of a matrix of tiles, read as tiles.h says.
float element(const std::vector<std::byte>& tiles, int columns, int row, int column) {
  const std::size_t tile = static_cast<std::size_t>(row / tile_rows) * tiles_of_columns(columns) +
                           static_cast<std::size_t>(column / tile_columns);
  const std::byte* const at = tiles.data() + tile * tile_bytes;
  const int g = row % 8;
  const int lower = row % 16 / 8;
  const int h = column % 64 / 16;
  const int k = column % 16;
  const int t = k % 8 / 2;
  const int nibble = lower + k / 8 * 2 + k % 2 * 4;
  std::uint32_t word = 0;
  std::memcpy(&word, at + 16 * (4 * g + t) + 4 * h, sizeof(word));
  const std::byte* const pair = at + tile_code_bytes + 8 * g + 4 * lower;
  return bf16_to_float(bf16_at(pair)) * static_cast<float>(word >> (4 * nibble) & 15) +
         bf16_to_float(bf16_at(pair + 2));
}

template <class T>
std::vector<T> fetched(const void* device, std::size_t count) {
  std::vector<T> host(count);
  download(host.data(), device, count * sizeof(T));
  return host;
}

/// A matrix of random bits, its bytes kept.
struct RandomMatrix {
  RandomMatrix(int rows, int columns, unsigned seed) {
    std::mt19937 random(seed);
    const auto fill = [&](std::vector<std::byte>& bytes, std::size_t count) {
      bytes.resize(count);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0x3F);  // finite as bfloat16
    };
    const std::size_t elements = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
    fill(words, elements / 2);
    for (std::byte& byte : words) byte = static_cast<std::byte>(random() & 0xFF);
    fill(scales, elements / 32);
    fill(biases, elements / 32);
    matrix = {
        .rows = rows, .columns = columns, .bits = 4, .words = words, .scales = scales, .biases = biases};
  }
  RandomMatrix(const RandomMatrix&) = delete;

  std::vector<std::byte> words;
  std::vector<std::byte> scales;
  std::vector<std::byte> biases;
  AffineMatrix matrix;
};

TEST(CudaPack, TilesHoldEveryElementAndZerosBelow) {
  for (const int rows : {1, 7, 8, 9, 16, 17, 40, 129}) {
    for (const int columns : {64, 128, 512, 2048, 4096}) {
      const RandomMatrix random(rows, columns, static_cast<unsigned>(rows * columns));
      const DeviceArray<std::byte> words(random.words.size());
      const DeviceArray<std::byte> scales(random.scales.size());
      const DeviceArray<std::byte> biases(random.biases.size());
      upload(words.data(), random.words.data(), words.size());
      upload(scales.data(), random.scales.data(), scales.size());
      upload(biases.data(), random.biases.data(), biases.size());
      const DeviceArray<std::byte> tiles(tiled_bytes(rows, columns));
      check(cudaMemset(tiles.data(), 0xFF, tiles.size()), "poisoning");
      launch_pack_tiles({reinterpret_cast<const std::uint32_t*>(words.data()),
                         reinterpret_cast<const std::uint16_t*>(scales.data()),
                         reinterpret_cast<const std::uint16_t*>(biases.data()), rows, columns},
                        tiles.data(), nullptr);
      const auto packed = fetched<std::byte>(tiles.data(), tiles.size());
      std::vector<float> expected(static_cast<std::size_t>(columns));
      int wrong = 0;
      for (int row = 0; row < tiles_of_rows(rows) * tile_rows; ++row) {
        std::fill(expected.begin(), expected.end(), 0.0F);
        if (row < rows) dequantize_row(random.matrix, row, expected);
        for (int column = 0; column < columns; ++column)
          wrong +=
              element(packed, columns, row, column) != expected[static_cast<std::size_t>(column)] ? 1 : 0;
      }
      EXPECT_EQ(wrong, 0) << rows << " x " << columns;
    }
  }
}

/// Rows of a packed matrix against rows of the checkpoint; every `step`-th, to be done in time.
class Comparison {
 public:
  explicit Comparison(int step) : step_(step) {}

  void stacked(const char* what, const std::byte* tiles,
               std::initializer_list<const AffineMatrix*> from) const {
    int rows = 0;
    for (const AffineMatrix* matrix : from) rows += matrix->rows;
    const auto packed = fetch(tiles, rows, **from.begin());
    int start = 0;
    for (const AffineMatrix* matrix : from) {
      for (int row = 0; row < matrix->rows; row += step_) expect(what, packed, start + row, *matrix, row);
      start += matrix->rows;
    }
  }
  void alternating(const char* what, const std::byte* tiles, const AffineMatrix& gate,
                   const AffineMatrix& up) const {
    const auto packed = fetch(tiles, 2 * gate.rows, gate);
    for (int row = 0; row < gate.rows; row += step_) {
      const int to = row / 8 * 16 + row % 8;
      expect(what, packed, to, gate, row);
      expect(what, packed, to + 8, up, row);
    }
  }

 private:
  static std::vector<std::byte> fetch(const std::byte* tiles, int rows, const AffineMatrix& like) {
    return fetched<std::byte>(tiles, tiled_bytes(rows, like.columns));
  }
  static void expect(const char* what, const std::vector<std::byte>& packed, int at, const AffineMatrix& from,
                     int row) {
    std::vector<float> expected(static_cast<std::size_t>(from.columns));
    dequantize_row(from, row, expected);
    int wrong = 0;
    for (int column = 0; column < from.columns; ++column) {
      const bool same =
          element(packed, from.columns, at, column) == expected[static_cast<std::size_t>(column)];
      wrong += same ? 0 : 1;
    }
    ASSERT_EQ(wrong, 0) << what << ", row " << row << " at " << at;
  }

  int step_;
};

void expect_vector(const char* what, const float* device, const std::vector<float>& host) {
  ASSERT_NE(device, nullptr) << what;
  EXPECT_EQ(fetched<float>(device, host.size()), host) << what;
}

void expect_bytes(const char* what, const void* device, std::span<const std::byte> host) {
  const auto bytes = fetched<std::byte>(device, host.size());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), host.begin())) << what;
}

void expect_router(const ByteRows& router, const MoeWeights& moe) {
  EXPECT_EQ(router.rows, moe.router.rows + 1);
  const int groups = router.columns / 64;
  const auto codes = fetched<std::uint8_t>(router.codes, std::size_t{1} * router.rows * router.columns);
  const auto scales = fetched<std::uint32_t>(router.scales, std::size_t{1} * router.rows * groups);
  std::vector<float> expected(static_cast<std::size_t>(router.columns));
  for (int row = 0; row < router.rows; ++row) {
    const bool last = row == moe.router.rows;
    dequantize_row(last ? moe.shared_gate : moe.router, last ? 0 : row, expected);
    int wrong = 0;
    for (int column = 0; column < router.columns; ++column) {
      const std::uint32_t pair = scales[static_cast<std::size_t>(row * groups + column / 64)];
      const float value =
          bf16_to_float(static_cast<std::uint16_t>(pair)) *
              static_cast<float>(codes[static_cast<std::size_t>(row * router.columns + column)]) +
          bf16_to_float(static_cast<std::uint16_t>(pair >> 16));
      wrong += value != expected[static_cast<std::size_t>(column)] ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0) << "router, row " << row;
  }
}

void expect_layer(const DeviceLayer& to, const LayerWeights& from, int step) {
  const Comparison compare(step);
  expect_vector("input norm", to.input_norm, from.input_norm);
  expect_vector("post-attention norm", to.post_attention_norm, from.post_attention_norm);
  if (const auto* delta = std::get_if<DeltaNetWeights>(&from.mixer)) {
    compare.stacked("in", to.in.data, {&delta->qkv, &delta->z, &delta->a, &delta->b});
    compare.stacked("out", to.out.data, {&delta->out});
    EXPECT_GE(to.in.rows, delta->qkv.rows + delta->z.rows + 2 * delta->a.rows);
    expect_vector("convolution", to.convolution, delta->convolution);
    expect_vector("a_log", to.a_log, delta->a_log);
    expect_vector("dt_bias", to.dt_bias, delta->dt_bias);
    expect_vector("norm", to.norm, delta->norm);
    EXPECT_EQ(to.q_norm, nullptr);
  } else {
    const auto& attention = std::get<AttentionWeights>(from.mixer);
    compare.stacked("in", to.in.data, {&attention.q, &attention.k, &attention.v});
    compare.stacked("out", to.out.data, {&attention.o});
    expect_vector("q norm", to.q_norm, attention.q_norm);
    expect_vector("k norm", to.k_norm, attention.k_norm);
    EXPECT_EQ(to.convolution, nullptr);
  }
  const MoeWeights& moe = from.moe;
  expect_router(to.router, moe);
  EXPECT_EQ(to.expert_gate_up.experts, moe.gate.experts);
  EXPECT_EQ(to.expert_down.experts, moe.gate.experts);
  const std::size_t gate_up = tiled_bytes(to.expert_gate_up.rows, to.expert_gate_up.columns);
  const std::size_t down = tiled_bytes(to.expert_down.rows, to.expert_down.columns);
  for (int e = 0; e < moe.gate.experts; e += step) {
    const AffineMatrix gate = moe.gate.expert(e);
    const AffineMatrix up = moe.up.expert(e);
    const AffineMatrix down_of = moe.down.expert(e);
    compare.alternating("gate_up", to.expert_gate_up.data + gate_up * static_cast<std::size_t>(e), gate, up);
    compare.stacked("down", to.expert_down.data + down * static_cast<std::size_t>(e), {&down_of});
  }
  compare.alternating("shared gate_up", to.shared_gate_up.data, moe.shared.gate, moe.shared.up);
  compare.stacked("shared down", to.shared_down.data, {&moe.shared.down});
}

void expect_weights(const DeviceWeights& to, const Weights& from, int step) {
  ASSERT_EQ(to.layers.size(), from.layers.size());
  expect_bytes("embedding's codes", to.embedding.codes, from.embedding.words);
  expect_bytes("embedding's scales", to.embedding.scales, from.embedding.scales);
  expect_bytes("embedding's biases", to.embedding.biases, from.embedding.biases);
  for (std::size_t i = 0; i < from.layers.size(); ++i) {
    SCOPED_TRACE(fmt::format("layer {}", i));
    expect_layer(to.layers[i], from.layers[i], step);
  }
  expect_vector("norm", to.norm, from.norm);
  Comparison(step).stacked("head", to.head.data, {&from.head});
}

Shape with_layers(Shape shape, int layers) {
  shape.layers = layers;
  return shape;
}

TEST(CudaUpload, EveryWeightOfTheDemoArrives) {
  for (const int layers : {demo.layers, 1}) {
    const Weights weights = synthetic_weights(with_layers(demo, layers));
    std::uint64_t last = 0;
    std::uint64_t all = 0;
    const DeviceWeights device =
        upload_weights(weights, with_layers(demo, layers), [&](std::uint64_t done, std::uint64_t total) {
          EXPECT_GE(done, last);
          last = done;
          all = total;
        });
    EXPECT_EQ(last, all);
    EXPECT_EQ(device.memory.size(), device_bytes(with_layers(demo, layers)));
    EXPECT_GE(device.memory.size(), all);
    EXPECT_LT(device.memory.size(), all + (std::size_t{1} << 20));
    expect_weights(device, weights, 1);
  }
}

TEST(CudaUpload, ThePlanOfThe35bIsItsWeights) {
  // 19.4 GB without the MTP layer.
  EXPECT_NEAR(static_cast<double>(device_bytes(qwen36_35b)), 19.4e9, 0.2e9);
}

class MappedPages final : public WeightPages {
 public:
  std::span<const std::byte> mapping(std::span<const std::byte> bytes) const override { return bytes; }
  void read_ahead(std::span<const std::byte> bytes) const override { calla::read_ahead(bytes); }
  void load(std::span<const std::byte> bytes) const override { EXPECT_TRUE(bring_in(bytes)); }
  void drop(std::span<const std::byte> bytes) const override { calla::drop(bytes); }
};

template <class Visit>
void each_matrix(Weights& weights, Visit visit) {
  visit(weights.embedding);
  for (LayerWeights& layer : weights.layers) {
    if (auto* delta = std::get_if<DeltaNetWeights>(&layer.mixer)) {
      for (AffineMatrix* matrix : {&delta->qkv, &delta->z, &delta->a, &delta->b, &delta->out}) visit(*matrix);
    } else {
      auto& attention = std::get<AttentionWeights>(layer.mixer);
      for (AffineMatrix* matrix : {&attention.q, &attention.k, &attention.v, &attention.o}) visit(*matrix);
    }
    MoeWeights& moe = layer.moe;
    for (AffineMatrix* matrix : {&moe.router, &moe.gate.all, &moe.up.all, &moe.down.all, &moe.shared.gate,
                                 &moe.shared.up, &moe.shared.down, &moe.shared_gate})
      visit(*matrix);
  }
  visit(weights.head);
}

/// The same weights in a mapped file, at odd places, as a checkpoint may have them.
Weights in_file(Weights weights, const std::filesystem::path& path) {
  {
    std::ofstream out(path, std::ios::binary);
    out.write("1234567", 7);
    each_matrix(weights, [&](const AffineMatrix& matrix) {
      for (const auto bytes : {matrix.words, matrix.scales, matrix.biases})
        out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    });
    EXPECT_TRUE(out.good());
  }
  const auto file = std::make_shared<const MappedFile>(path);
  std::size_t at = 7;
  each_matrix(weights, [&](AffineMatrix& matrix) {
    for (auto* bytes : {&matrix.words, &matrix.scales, &matrix.biases}) {
      *bytes = file->bytes().subspan(at, bytes->size());
      at += bytes->size();
    }
  });
  weights.owner = file;
  weights.pages = std::make_shared<const MappedPages>();
  return weights;
}

TEST(CudaUpload, AMappedFileArrivesFromOddPlaces) {
  const test::TemporaryFolder folder;
  const Weights weights = in_file(synthetic_weights(demo), folder.path() / "weights");
  expect_weights(upload_weights(weights, demo, {}), weights, 3);
}

double seconds_of(const Weights& weights, const Shape& shape, DeviceWeights& device) {
  const auto start = std::chrono::steady_clock::now();
  device = upload_weights(weights, shape, {});
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(CudaUploadBenchmark, FourLayersOfThe35b) {
  const Shape shape = with_layers(qwen36_35b, 4);
  const Weights synthetic = synthetic_weights(shape);
  const test::TemporaryFolder folder;
  const Weights mapped = in_file(synthetic, folder.path() / "weights");
  DeviceWeights device;
  const double bytes = static_cast<double>(device_bytes(shape));
  for (int run = 0; run < 3; ++run) {
    const double from_memory = seconds_of(synthetic, shape, device);
    const double from_file = seconds_of(mapped, shape, device);
    fmt::print(
        "{:.2f} GB: from memory {:.3f} s, {:.1f} GB/s; from a mapped file in the page cache {:.3f} s, {:.1f} "
        "GB/s\n",
        bytes / 1e9, from_memory, bytes / from_memory / 1e9, from_file, bytes / from_file / 1e9);
  }
  expect_weights(device, mapped, 41);
}

}  // namespace
}  // namespace calla::cuda
