#include "checkpoint/synthetic.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "reference/forward.h"
#include "reference/ops.h"

namespace calla {
namespace {

Shape cut(Shape shape, int layers) {
  shape.layers = layers;
  return shape;
}

const Weights& big() {
  static const Weights weights = synthetic_weights(cut(qwen36_35b, 4));
  return weights;
}

double deviation(std::span<const float> values) {
  double squares = 0;
  for (const float v : values) squares += double{v} * double{v};
  return std::sqrt(squares / static_cast<double>(values.size()));
}

/// The standard deviation of a matrix's first rows, times the root of their length.
double gain(const AffineMatrix& matrix) {
  const int rows = std::min(matrix.rows, 64);
  std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(matrix.columns));
  for (int row = 0; row < rows; ++row) {
    dequantize_row(matrix, row,
                   std::span(values).subspan(static_cast<std::size_t>(row * matrix.columns),
                                             static_cast<std::size_t>(matrix.columns)));
  }
  return deviation(values) * std::sqrt(matrix.columns);
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

TEST(Synthetic, HoldsExactlyTheTensorsOfTheShape) {
  for (const Shape& shape : {demo, cut(qwen36_35b, 5)}) {
    const SyntheticCheckpoint made = synthesize(shape);
    const std::vector<TensorSpec> specs = tensor_specs(shape, false);
    ASSERT_EQ(made.tensors.size(), specs.size());
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(made.tensors[i].spec, specs[i]);
      std::uint64_t size = size_of(specs[i].dtype);
      for (const std::int64_t extent : specs[i].shape) size *= static_cast<std::uint64_t>(extent);
      EXPECT_EQ(made.tensors[i].bytes.size(), size) << specs[i].name;
      bytes += size;
    }
    EXPECT_EQ(made.weights.bytes, bytes);
    EXPECT_EQ(made.weights.layers.size(), static_cast<std::size_t>(shape.layers));
    EXPECT_FALSE(made.weights.mtp);
  }
}

TEST(Synthetic, IsTheSameEveryTimeAndFewerLayersAreTheFirstOfMore) {
  const SyntheticCheckpoint whole = synthesize(demo);
  const SyntheticCheckpoint again = synthesize(demo);
  for (std::size_t i = 0; i < whole.tensors.size(); ++i)
    EXPECT_TRUE(same_bytes(whole.tensors[i].bytes, again.tensors[i].bytes)) << whole.tensors[i].spec.name;

  const SyntheticCheckpoint few = synthesize(cut(demo, 2));
  for (const StoredTensor& tensor : few.tensors) {
    const auto same =
        std::find_if(whole.tensors.begin(), whole.tensors.end(),
                     [&](const StoredTensor& other) { return other.spec.name == tensor.spec.name; });
    ASSERT_NE(same, whole.tensors.end());
    EXPECT_TRUE(same_bytes(tensor.bytes, same->bytes)) << tensor.spec.name;
  }
  const auto& one = whole.weights.layers[0].moe;
  const auto& other = whole.weights.layers[1].moe;
  EXPECT_FALSE(same_bytes(one.gate.all.words, other.gate.all.words)) << "layers must differ";
  EXPECT_FALSE(same_bytes(one.gate.all.words, one.up.all.words));
}

TEST(Synthetic, ViewsBeginAtMultiplesOf64) {
  for (const StoredTensor& tensor : synthesize(demo).tensors) {
    if (tensor.spec.shape.size() < 2 || tensor.spec.name.ends_with("conv1d.weight")) continue;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % 64, 0U) << tensor.spec.name;
  }
}

TEST(Synthetic, MatricesHaveTheirGain) {
  const LayerWeights& first = big().layers[0];
  const auto& delta = std::get<DeltaNetWeights>(first.mixer);
  const auto& attention = std::get<AttentionWeights>(big().layers[3].mixer);
  for (const AffineMatrix* matrix : {&delta.qkv, &delta.z, &delta.b, &delta.out, &attention.q, &attention.o,
                                     &first.moe.gate.all, &first.moe.down.all, &first.moe.shared.down}) {
    EXPECT_NEAR(gain(*matrix), 1.0, 0.1);
  }
  EXPECT_NEAR(gain(delta.a), 0.5, 0.05);
  EXPECT_NEAR(gain(first.moe.router), 1.5, 0.15);
  EXPECT_NEAR(gain(big().embedding), std::sqrt(2048), 4.6);
  EXPECT_NEAR(gain(big().head), 3.5, 0.35);
}

TEST(Synthetic, ScalesVaryAndAPartOfThemIsNegative) {
  const AffineMatrix& matrix = big().layers[2].moe.gate.all;
  int negative = 0;
  float least = 1;
  float most = 0;
  for (int row = 0; row < 256; ++row) {
    for (int group = 0; group < matrix.groups(); ++group) {
      const float scale = matrix.scale(row, group);
      negative += scale < 0 ? 1 : 0;
      least = std::min(least, std::abs(scale));
      most = std::max(most, std::abs(scale));
      EXPECT_NEAR(matrix.bias(row, group) / scale, -7.5F, 0.36F);
    }
  }
  EXPECT_NEAR(negative / 8192.0, 0.25, 0.03);
  EXPECT_NEAR(most / least, 1.25 / 0.75, 0.05);
}

TEST(Synthetic, DecaysLieWhereTrainedOnesDo) {
  for (const LayerWeights& layer : big().layers) {
    const auto* delta = std::get_if<DeltaNetWeights>(&layer.mixer);
    if (delta == nullptr) continue;
    for (std::size_t head = 0; head < delta->a_log.size(); ++head) {
      const float decay = std::exp(-std::exp(delta->a_log[head]) * reference::softplus(delta->dt_bias[head]));
      EXPECT_GT(decay, 0.9F);
      EXPECT_LT(decay, 0.9995F);
    }
  }
}

TEST(Synthetic, TokensReachNearlyAllExperts) {
  for (const LayerWeights& layer : big().layers) {
    std::set<int> reached;
    std::vector<float> row(2048);
    for (int token = 0; token < 300; ++token) {
      dequantize_row(big().embedding, token * 827, row);
      const std::vector<float> logits =
          reference::linear(layer.moe.router, reference::rms_norm(row, layer.post_attention_norm));
      std::vector<int> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + Shape::experts_per_token, order.end(),
                        [&](int a, int b) {
                          return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
                        });
      reached.insert(order.begin(), order.begin() + Shape::experts_per_token);
    }
    EXPECT_GE(reached.size(), 245U);
  }
}

TEST(Synthetic, ActivationsAndLogitsAreThoseOfANetwork) {
  const Weights weights = synthetic_weights(demo);
  reference::SequenceState<demo> state;
  std::vector<Token> tokens(96);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<Token>(i * 997 % 2560);
  const auto hidden =
      reference::forward<demo>(weights, state, tokens, [](int stage, std::span<const float> x) {
        EXPECT_GT(deviation(x), 0.9) << "stage " << stage;
        EXPECT_LT(deviation(x), 5) << "stage " << stage;
        for (const float value : x) ASSERT_LT(std::abs(value), 40) << "stage " << stage;
      });
  const auto logits = reference::logits<demo>(weights, hidden);
  EXPECT_NEAR(deviation(logits), 3.5, 0.5);
}

}  // namespace
}  // namespace calla
