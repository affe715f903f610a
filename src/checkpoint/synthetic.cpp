#include "checkpoint/synthetic.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

namespace calla {
namespace {

// Windows and pools begin at multiples of this, as allocations of a backend do.
constexpr std::size_t alignment = 64;
struct alignas(alignment) Block {
  std::array<std::uint64_t, alignment / sizeof(std::uint64_t)> words;
};

constexpr std::uint64_t seed = 0x43616C6C61;

/// Value `index` of the random stream `stream` (SplitMix64).
std::uint64_t random(std::uint64_t stream, std::uint64_t index) {
  std::uint64_t z = stream + (index + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// A stream of its own for each name: FNV-1a.
std::uint64_t stream_of(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325 ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

/// 16 bits as a number in [low, high).
float between(float low, float high, std::uint64_t bits) {
  return low + (high - low) * static_cast<float>(bits & 0xFFFF) / 65536.0F;
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
}

constexpr std::size_t blocks_of(std::size_t bytes) { return (bytes + alignment - 1) / alignment; }

/// Random bytes, or bfloat16 values, at an aligned place.
class Pool {
 public:
  explicit Pool(std::size_t bytes)
      : size_(blocks_of(bytes)), data_(std::make_unique_for_overwrite<Block[]>(size_)) {}

  std::size_t blocks() const { return size_; }
  std::span<Block> all() { return {data_.get(), size_}; }
  std::span<const std::byte> window(std::size_t block, std::size_t bytes) const {
    return std::as_bytes(std::span<const Block>(data_.get(), size_)).subspan(block * alignment, bytes);
  }

 private:
  std::size_t size_;
  std::unique_ptr<Block[]> data_;
};

/// What tells the scales of one matrix from those of another: w has the standard deviation `deviation`.
struct ScaleKind {
  int bits;
  float deviation;
  bool operator<(const ScaleKind& other) const {
    return std::tie(bits, deviation) < std::tie(other.bits, other.deviation);
  }
};

/// Scales and biases; those of one group stand at the same place of both.
struct ScalePools {
  Pool scales;
  Pool biases;
};

/// The bytes behind all views.
struct Storage {
  std::unique_ptr<Pool> words;
  std::map<ScaleKind, ScalePools> scales;
  std::deque<std::vector<std::uint16_t>> vectors;  // bfloat16
};

/// Standard deviation of the products of a matrix with activations of standard deviation 1.
float gain_of(std::string_view name, int columns, int bits) {
  if (name.ends_with("embed_tokens")) return std::sqrt(static_cast<float>(columns));  // rows of deviation 1
  if (name.ends_with("lm_head")) return 3.5F;
  if (name.ends_with("in_proj_a")) return 0.5F;  // moves a decay by a factor, not by orders of magnitude
  return bits == 8 ? 1.5F : 1.0F;                // routers: the shares of the chosen experts differ
}

ScaleKind kind_of(std::string_view name, int columns, int bits) {
  return {bits, gain_of(name, columns, bits) / std::sqrt(static_cast<float>(columns))};
}

std::size_t word_bytes(std::size_t rows, int columns, int bits) {
  return rows * static_cast<std::size_t>(columns) * static_cast<std::size_t>(bits) / 8;
}
std::size_t scale_bytes(std::size_t rows, int columns) {
  return rows * static_cast<std::size_t>(columns / Shape::quantization_group) * sizeof(std::uint16_t);
}

/// Finds how large the pools must be. They are sized for the whole model, so that a cut one has the same.
class Sizer final : public TensorVisitor {
 public:
  void matrix(const std::string& name, AffineMatrix&, int rows, int columns, int bits) override {
    add(name, static_cast<std::size_t>(rows), columns, bits);
  }
  void stack(const std::string& name, ExpertStack&, int experts, int rows, int columns, int bits) override {
    add(name, static_cast<std::size_t>(experts) * static_cast<std::size_t>(rows), columns, bits);
  }
  void vector(const std::string&, std::vector<float>&, int) override {}
  void convolution(const std::string&, std::vector<float>&, int) override {}

  std::size_t words = 0;
  std::map<ScaleKind, std::size_t> scales;

 private:
  void add(const std::string& name, std::size_t rows, int columns, int bits) {
    words = std::max(words, word_bytes(rows, columns, bits));
    std::size_t& size = scales[kind_of(name, columns, bits)];
    size = std::max(size, scale_bytes(rows, columns));
  }
};

ScalePools make_scales(const ScaleKind& kind, std::size_t bytes) {
  ScalePools pools{Pool(bytes), Pool(bytes)};
  // q is uniform over its range, which has this mean and standard deviation.
  const float range = kind.bits == 4 ? 16.0F : 256.0F;
  const float mean = (range - 1) / 2;
  const float unit = kind.deviation / std::sqrt((range * range - 1) / 12);
  const std::uint64_t stream = random(seed + 1, std::bit_cast<std::uint32_t>(kind.deviation));
  std::uint64_t index = 0;
  const auto fill = [&](std::uint64_t& scales, std::uint64_t& biases) {
    scales = biases = 0;
    for (int lane = 0; lane < 64; lane += 16) {
      const std::uint64_t bits = random(stream, index++);
      const bool negative = (bits >> 62) == 0;  // a quarter of the groups
      const float scale = bf16_to_float(to_bf16((negative ? -unit : unit) * between(0.75F, 1.25F, bits)));
      const float bias = -mean * scale * between(0.96F, 1.04F, bits >> 16);
      scales |= std::uint64_t{to_bf16(scale)} << lane;
      biases |= std::uint64_t{to_bf16(bias)} << lane;
    }
  };
  for (std::size_t block = 0; block < pools.scales.blocks(); ++block) {
    for (std::size_t word = 0; word < Block{}.words.size(); ++word)
      fill(pools.scales.all()[block].words[word], pools.biases.all()[block].words[word]);
  }
  return pools;
}

Storage make_pools(const Shape& shape) {
  constexpr std::size_t room = 16 << 20;  // so that the largest windows have places to choose from
  const Shape& whole = same_model(shape, demo) ? demo : qwen36_35b;
  Weights scratch;
  Sizer sizes;
  visit_tensors(scratch, whole, false, sizes);

  Storage storage;
  storage.words = std::make_unique<Pool>(sizes.words + room);
  std::uint64_t index = 0;
  for (Block& block : storage.words->all()) {
    for (std::uint64_t& word : block.words) word = random(seed, index++);
  }
  for (const auto& [kind, bytes] : sizes.scales)
    storage.scales.emplace(kind, make_scales(kind, bytes + room / 64));
  return storage;
}

/// Value of a small vector: what element `index` of the tensor `name` is.
float vector_value(std::string_view name, std::uint64_t bits) {
  if (name.ends_with("conv1d.weight")) return between(0.3F, 0.7F, bits) * ((bits >> 63) != 0 ? 1.0F : -1.0F);
  // A head's state decays by exp(-exp(A_log) softplus(a + dt_bias)), a being about 0 +- 0.5.
  if (name.ends_with("A_log")) return between(-0.4F, 0.4F, bits);
  if (name.ends_with("dt_bias")) return between(-5.8F, -3.0F, bits);
  return between(0.8F, 1.2F, bits);  // gain of a norm
}

/// Hands out windows of the pools.
class Filler final : public TensorVisitor {
 public:
  explicit Filler(Storage& storage) : storage_(storage) {}

  void matrix(const std::string& name, AffineMatrix& target, int rows, int columns, int bits) override {
    target = affine(name, affine_specs(name, {rows}, columns, bits), rows, columns, bits);
  }
  void stack(const std::string& name, ExpertStack& target, int experts, int rows, int columns,
             int bits) override {
    target = {.experts = experts,
              .all = affine(name, affine_specs(name, {experts, rows}, columns, bits), experts * rows, columns,
                            bits)};
  }
  void vector(const std::string& name, std::vector<float>& target, int size) override {
    fill({name, DType::bf16, {size}}, target, static_cast<std::size_t>(size));
  }
  void convolution(const std::string& name, std::vector<float>& target, int channels) override {
    constexpr int taps = Shape::convolution_taps;
    fill({name, DType::bf16, {channels, taps, 1}}, target, static_cast<std::size_t>(channels) * taps);
  }

  std::size_t bytes() const { return bytes_; }
  std::vector<StoredTensor> take() { return std::move(tensors_); }

 private:
  AffineMatrix affine(const std::string& name, AffineSpecs specs, int rows, int columns, int bits) {
    const ScalePools& pools = storage_.scales.at(kind_of(name, columns, bits));
    const std::size_t words = word_bytes(static_cast<std::size_t>(rows), columns, bits);
    const std::size_t scales = scale_bytes(static_cast<std::size_t>(rows), columns);
    const std::uint64_t stream = stream_of(name);
    // The embedding's rows begin at even blocks of the pool and those of all others at odd ones: else a row
    // of a projection could be a row of the embedding, and answer that one token with a huge value.
    const bool embedding = name.ends_with("embed_tokens");
    const std::size_t pairs = (storage_.words->blocks() - blocks_of(words)) / 2;
    const std::size_t place = embedding ? 0 : 2 * (random(stream, 0) % pairs) + 1;
    const std::size_t scale_place = random(stream, 1) % (pools.scales.blocks() - blocks_of(scales) + 1);
    const AffineMatrix matrix{.rows = rows,
                              .columns = columns,
                              .bits = bits,
                              .words = storage_.words->window(place, words),
                              .scales = pools.scales.window(scale_place, scales),
                              .biases = pools.biases.window(scale_place, scales)};
    add(std::move(specs.words), matrix.words);
    add(std::move(specs.scales), matrix.scales);
    add(std::move(specs.biases), matrix.biases);
    return matrix;
  }

  void fill(TensorSpec spec, std::vector<float>& target, std::size_t size) {
    const std::uint64_t stream = stream_of(spec.name);
    std::vector<std::uint16_t>& values = storage_.vectors.emplace_back(size);
    target.resize(size);
    for (std::size_t i = 0; i < size; ++i) {
      values[i] = to_bf16(vector_value(spec.name, random(stream, i)));
      target[i] = bf16_to_float(values[i]);
    }
    add(std::move(spec), std::as_bytes(std::span(values)));
  }

  void add(TensorSpec spec, std::span<const std::byte> bytes) {
    bytes_ += bytes.size();
    tensors_.push_back({std::move(spec), bytes});
  }

  Storage& storage_;
  std::size_t bytes_ = 0;
  std::vector<StoredTensor> tensors_;
};

}  // namespace

SyntheticCheckpoint synthesize(const Shape& shape) {
  const auto storage = std::make_shared<Storage>(make_pools(shape));
  Filler filler(*storage);
  SyntheticCheckpoint made;
  visit_tensors(made.weights, shape, false, filler);
  made.weights.bytes = filler.bytes();
  made.weights.owner = storage;
  made.tensors = filler.take();
  return made;
}

Weights synthetic_weights(const Shape& shape) { return synthesize(shape).weights; }

ModelConfig synthetic_config(const Shape& shape, const ModelConfig& tokenizers) {
  return {.shape = shape,
          .context = same_model(shape, demo) ? 4096 : 262144,
          .end_tokens = tokenizers.end_tokens};
}

}  // namespace calla
