// The model's tensors as a checkpoint names them: one description, in the model's order, for everyone who
// reads, lists or writes a checkpoint.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/weights.h"

namespace calla {

/// What a visit does at each tensor. `target` is the field of Weights that the tensor fills.
class TensorVisitor {
 public:
  virtual ~TensorVisitor() = default;

  /// A quantised matrix: NAME.weight, NAME.scales, NAME.biases.
  virtual void matrix(const std::string& name, AffineMatrix& target, int rows, int columns, int bits) = 0;
  /// The same for a stack of matrices.
  virtual void stack(const std::string& name, ExpertStack& target, int experts, int rows, int columns,
                     int bits) = 0;
  virtual void vector(const std::string& name, std::vector<float>& target, int size) = 0;
  virtual void convolution(const std::string& name, std::vector<float>& target, int channels) = 0;
};

/// Visits every tensor of the model in its order, the MTP layer at the end. Sets the layers of `weights` and
/// the kind of their mixers on the way.
void visit_tensors(Weights& weights, const Shape& shape, bool with_mtp, TensorVisitor& visitor);

/// Tensors that a checkpoint may hold and the engine does not use: the vision tower.
bool is_skipped(std::string_view name);
/// Tensors of the MTP layer, which a checkpoint has whole or not at all.
bool is_mtp(std::string_view name);

/// One tensor as MLX writes it.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;

  bool operator==(const TensorSpec&) const = default;
};

/// The three tensors of a quantised matrix: words, scales, biases. `leading` are the extents before the
/// columns.
struct AffineSpecs {
  TensorSpec words;
  TensorSpec scales;
  TensorSpec biases;
};
AffineSpecs affine_specs(const std::string& name, std::vector<std::int64_t> leading, int columns, int bits);

/// Every tensor of a checkpoint of this shape, in the model's order, as MLX writes them: vectors in BF16, the
/// convolution as [channels, 4, 1].
std::vector<TensorSpec> tensor_specs(const Shape& shape, bool with_mtp);

}  // namespace calla
