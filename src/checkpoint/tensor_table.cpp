#include "checkpoint/tensor_table.h"

#include <utility>

#include <fmt/format.h>

namespace calla {
namespace {
constexpr int weight_bits = 4;
constexpr int router_bits = 8;  // the router and the gate of the shared expert decide; they are kept finer

/// Names the tensors below one prefix.
class Scope {
 public:
  Scope(std::string prefix, TensorVisitor& visitor) : prefix_(std::move(prefix)), visitor_(visitor) {}

  Scope operator/(std::string_view part) const { return {fmt::format("{}{}.", prefix_, part), visitor_}; }

  void matrix(std::string_view name, AffineMatrix& target, int rows, int columns,
              int bits = weight_bits) const {
    visitor_.matrix(full(name), target, rows, columns, bits);
  }
  void stack(std::string_view name, ExpertStack& target, int experts, int rows, int columns) const {
    visitor_.stack(full(name), target, experts, rows, columns, weight_bits);
  }
  void vector(std::string_view name, std::vector<float>& target, int size) const {
    visitor_.vector(full(name), target, size);
  }
  void convolution(std::string_view name, std::vector<float>& target, int channels) const {
    visitor_.convolution(full(name), target, channels);
  }

 private:
  std::string full(std::string_view name) const { return prefix_ + std::string(name); }

  std::string prefix_;
  TensorVisitor& visitor_;
};

void visit_attention(const Scope& scope, AttentionWeights& w, const Shape& s) {
  scope.matrix("q_proj", w.q, 2 * s.attention_dim(), s.hidden);
  scope.matrix("k_proj", w.k, s.kv_dim(), s.hidden);
  scope.matrix("v_proj", w.v, s.kv_dim(), s.hidden);
  scope.vector("q_norm.weight", w.q_norm, Shape::attention_head_dim);
  scope.vector("k_norm.weight", w.k_norm, Shape::attention_head_dim);
  scope.matrix("o_proj", w.o, s.hidden, s.attention_dim());
}

void visit_delta_net(const Scope& scope, DeltaNetWeights& w, const Shape& s) {
  scope.matrix("in_proj_qkv", w.qkv, s.convolution_channels(), s.hidden);
  scope.matrix("in_proj_z", w.z, s.delta_value_dim(), s.hidden);
  scope.matrix("in_proj_a", w.a, s.delta_value_heads, s.hidden);
  scope.matrix("in_proj_b", w.b, s.delta_value_heads, s.hidden);
  scope.convolution("conv1d.weight", w.convolution, s.convolution_channels());
  scope.vector("A_log", w.a_log, s.delta_value_heads);
  scope.vector("dt_bias", w.dt_bias, s.delta_value_heads);
  scope.vector("norm.weight", w.norm, Shape::delta_head_dim);
  scope.matrix("out_proj", w.out, s.hidden, s.delta_value_dim());
}

void visit_moe(const Scope& scope, MoeWeights& w, const Shape& s) {
  scope.matrix("gate", w.router, s.experts, s.hidden, router_bits);
  const Scope experts = scope / "switch_mlp";
  experts.stack("gate_proj", w.gate, s.experts, s.expert_hidden, s.hidden);
  experts.stack("up_proj", w.up, s.experts, s.expert_hidden, s.hidden);
  experts.stack("down_proj", w.down, s.experts, s.hidden, s.expert_hidden);
  const Scope shared = scope / "shared_expert";
  shared.matrix("gate_proj", w.shared.gate, s.shared_expert_hidden, s.hidden);
  shared.matrix("up_proj", w.shared.up, s.shared_expert_hidden, s.hidden);
  shared.matrix("down_proj", w.shared.down, s.hidden, s.shared_expert_hidden);
  scope.matrix("shared_expert_gate", w.shared_gate, 1, s.hidden, router_bits);
}

void visit_layer(const Scope& scope, LayerWeights& w, const Shape& s, bool attention) {
  scope.vector("input_layernorm.weight", w.input_norm, s.hidden);
  if (attention) {
    visit_attention(scope / "self_attn", w.mixer.emplace<AttentionWeights>(), s);
  } else {
    visit_delta_net(scope / "linear_attn", w.mixer.emplace<DeltaNetWeights>(), s);
  }
  scope.vector("post_attention_layernorm.weight", w.post_attention_norm, s.hidden);
  visit_moe(scope / "mlp", w.moe, s);
}

void visit_mtp(const Scope& scope, MtpWeights& w, const Shape& s) {
  scope.vector("pre_fc_norm_embedding.weight", w.embedding_norm, s.hidden);
  scope.vector("pre_fc_norm_hidden.weight", w.hidden_norm, s.hidden);
  scope.matrix("fc", w.fc, s.hidden, 2 * s.hidden);
  visit_layer(scope / "layers.0", w.layer, s, true);
  scope.vector("norm.weight", w.norm, s.hidden);
}

class SpecLister : public TensorVisitor {
 public:
  void matrix(const std::string& name, AffineMatrix&, int rows, int columns, int bits) override {
    add(affine_specs(name, {rows}, columns, bits));
  }
  void stack(const std::string& name, ExpertStack&, int experts, int rows, int columns, int bits) override {
    add(affine_specs(name, {experts, rows}, columns, bits));
  }
  void vector(const std::string& name, std::vector<float>&, int size) override {
    specs_.push_back({name, DType::bf16, {size}});
  }
  void convolution(const std::string& name, std::vector<float>&, int channels) override {
    specs_.push_back({name, DType::bf16, {channels, Shape::convolution_taps, 1}});
  }

  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  void add(AffineSpecs specs) {
    specs_.push_back(std::move(specs.words));
    specs_.push_back(std::move(specs.scales));
    specs_.push_back(std::move(specs.biases));
  }

  std::vector<TensorSpec> specs_;
};
}  // namespace

void visit_tensors(Weights& weights, const Shape& shape, bool with_mtp, TensorVisitor& visitor) {
  const Scope language = Scope("", visitor) / "language_model";
  const Scope model = language / "model";
  model.matrix("embed_tokens", weights.embedding, shape.vocabulary, shape.hidden);
  weights.layers.resize(static_cast<std::size_t>(shape.layers));
  int index = 0;
  for (LayerWeights& layer : weights.layers) {
    visit_layer(model / fmt::format("layers.{}", index), layer, shape, Shape::is_attention(index));
    ++index;
  }
  model.vector("norm.weight", weights.norm, shape.hidden);
  language.matrix("lm_head", weights.head, shape.vocabulary, shape.hidden);
  if (with_mtp) visit_mtp(Scope("", visitor) / "mtp", weights.mtp.emplace(), shape);
}

bool is_skipped(std::string_view name) { return name.starts_with("vision_tower."); }
bool is_mtp(std::string_view name) { return name.starts_with("mtp."); }

AffineSpecs affine_specs(const std::string& name, std::vector<std::int64_t> leading, int columns, int bits) {
  const auto with_columns = [&](int extent) {
    std::vector<std::int64_t> shape = leading;
    shape.push_back(extent);
    return shape;
  };
  const std::vector<std::int64_t> groups = with_columns(columns / Shape::quantization_group);
  return {.words = {name + ".weight", DType::u32, with_columns(columns * bits / 32)},
          .scales = {name + ".scales", DType::bf16, groups},
          .biases = {name + ".biases", DType::bf16, groups}};
}

std::vector<TensorSpec> tensor_specs(const Shape& shape, bool with_mtp) {
  Weights scratch;
  SpecLister lister;
  visit_tensors(scratch, shape, with_mtp, lister);
  return lister.take();
}

}  // namespace calla
