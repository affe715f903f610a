#include "model/cost.h"

#include <cmath>

namespace calla {
namespace {

/// Quantised weights, by the bits they are stored in, and plain numbers.
struct Parts {
  double four_bit = 0;   // weights
  double eight_bit = 0;  // weights
  double vectors = 0;    // elements

  double multiply_adds() const { return four_bit + eight_bit; }
  double bytes() const {
    constexpr double scale_and_bias = 2.0 * 2 / Shape::quantization_group;
    constexpr double bf16 = 2;
    return four_bit * (0.5 + scale_and_bias) + eight_bit * (1 + scale_and_bias) + vectors * bf16;
  }
  Parts& operator+=(const Parts& other) {
    four_bit += other.four_bit;
    eight_bit += other.eight_bit;
    vectors += other.vectors;
    return *this;
  }
};

Parts operator*(double factor, const Parts& parts) {
  return {factor * parts.four_bit, factor * parts.eight_bit, factor * parts.vectors};
}

Parts attention(const Shape& s) {
  const double query_gate_and_out = 3.0 * s.attention_dim() * s.hidden;
  return {.four_bit = query_gate_and_out + 2.0 * s.kv_dim() * s.hidden,
          .vectors = 2.0 * Shape::attention_head_dim};
}

Parts delta_net(const Shape& s) {
  const double qkv_z_and_out = (s.convolution_channels() + 2.0 * s.delta_value_dim()) * s.hidden;
  return {.four_bit = qkv_z_and_out + 2.0 * s.delta_value_heads * s.hidden,
          .vectors = double{Shape::convolution_taps} * s.convolution_channels() + 2.0 * s.delta_value_heads +
                     Shape::delta_head_dim};
}

/// With `experts` of the routed ones, and the layer's two norms.
Parts moe(const Shape& s, double experts) {
  return {.four_bit = 3.0 * s.hidden * (experts * s.expert_hidden + s.shared_expert_hidden),
          .eight_bit = (s.experts + 1.0) * s.hidden,
          .vectors = 2.0 * s.hidden};
}

Parts layers(const Shape& s, double experts) {
  Parts sum = double(s.attention_layers()) * attention(s);
  sum += double(s.delta_layers()) * delta_net(s);
  sum += double(s.layers) * moe(s, experts);
  return sum;
}

Parts head(const Shape& s) {
  return {.four_bit = double{1} * s.vocabulary * s.hidden, .vectors = double(s.hidden)};
}

/// Elements of the recurrent state of one DeltaNet layer.
double state_elements(const Shape& s) {
  return double{1} * s.delta_value_heads * Shape::delta_head_dim * Shape::delta_head_dim;
}

}  // namespace

double expected_experts(const Shape& shape, int tokens) {
  const double missed = 1 - double{Shape::experts_per_token} / shape.experts;
  return shape.experts * (1 - std::pow(missed, tokens));
}

DecodeBytes decode_bytes(const Shape& shape, int batch, int context) {
  constexpr double f32 = 4;
  constexpr double bf16 = 2;
  constexpr double read_and_written = 2;
  Parts weights = layers(shape, expected_experts(shape, batch));
  weights += head(shape);
  const double window = (Shape::convolution_taps - 1.0) * shape.convolution_channels();
  return {.weights = weights.bytes(),
          .embedding = batch * Parts{.four_bit = double(shape.hidden)}.bytes(),
          .states = read_and_written * f32 * batch * shape.delta_layers() * (state_elements(shape) + window),
          .kv_cache = 2 * bf16 * batch * shape.attention_layers() * double(shape.kv_dim()) * context};
}

double prefill_operations(const Shape& shape, int tokens) {
  constexpr double multiply_add = 2;
  const double products = layers(shape, Shape::experts_per_token).multiply_adds();
  const double convolution = double{Shape::convolution_taps} * shape.convolution_channels();
  // What the state predicts for the key, its correction, and what it holds for the query; the decay is one
  // multiplication more.
  const double recurrence = 3.5 * state_elements(shape);
  const double delta = shape.delta_layers() * (convolution + recurrence);
  // Scores and mixed values, over the token itself and all before it.
  const double visible = (tokens + 1.0) / 2;
  const double attended = shape.attention_layers() * 2.0 * shape.attention_dim() * visible;
  return multiply_add * (tokens * (products + delta + attended) + head(shape).multiply_adds());
}

}  // namespace calla
