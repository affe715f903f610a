#include "checkpoint/loader.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/tensor_table.h"

namespace calla {
namespace {
using Extents = std::vector<std::int64_t>;

std::vector<float> to_floats(const Tensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / size_of(tensor.dtype));
  if (tensor.dtype == DType::f32) {
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + i * sizeof(bits), sizeof(bits));
    values[i] = bf16_to_float(bits);
  }
  return values;
}

/// Fills Weights from a store, and keeps account of what it found.
class Binder : public TensorVisitor {
 public:
  explicit Binder(const TensorStore& store) : store_(store) {}

  void matrix(const std::string& name, AffineMatrix& target, int rows, int columns, int bits) override {
    target = affine(affine_specs(name, {rows}, columns, bits), rows, columns, bits);
  }

  void stack(const std::string& name, ExpertStack& target, int experts, int rows, int columns,
             int bits) override {
    target = {
        .experts = experts,
        .all = affine(affine_specs(name, {experts, rows}, columns, bits), experts * rows, columns, bits)};
  }

  void vector(const std::string& name, std::vector<float>& target, int size) override {
    floats(name, target, {DType::bf16, DType::f32}, {{size}});
  }

  void convolution(const std::string& name, std::vector<float>& target, int channels) override {
    constexpr int taps = Shape::convolution_taps;
    // MLX, PyTorch, and without the axis of one: the same bytes in each.
    floats(name, target, {DType::bf16, DType::f32},
           {{channels, taps, 1}, {channels, 1, taps}, {channels, taps}});
  }

  std::size_t bytes() const { return bytes_; }

  /// Throws unless every tensor was found, right, and no other one is there.
  void raise_faults(const Shape& shape) const {
    std::vector<std::string> unknown;
    for (const auto& [name, tensor] : store_.tensors()) {
      if (!visited_.contains(name) && !is_skipped(name)) unknown.push_back(quote(name) + " is unknown");
    }
    FaultList faults;
    for (const std::string& fault : wrong_) faults.add(fault);
    // Alternately, since a renamed tensor shows as one of each, and only eight are told.
    for (std::size_t i = 0; i < std::max(missing_.size(), unknown.size()); ++i) {
      if (i < missing_.size()) faults.add(quote(missing_[i]) + " is missing");
      if (i < unknown.size()) faults.add(unknown[i]);
    }
    faults.raise(store_.directory().string(),
                 fmt::format("does not hold the tensors of {}:", calla::name(shape)), wanted_checkpoint);
  }

 private:
  /// The tensor, or null when it is missing or wrong, which is noted.
  const Tensor* find(const std::string& name, std::initializer_list<DType> dtypes,
                     std::initializer_list<Extents> shapes) {
    visited_.insert(name);
    const auto found = store_.tensors().find(name);
    if (found == store_.tensors().end()) {
      missing_.push_back(name);
      return nullptr;
    }
    const Tensor& tensor = *found->second;
    if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end() ||
        std::find(shapes.begin(), shapes.end(), tensor.shape) == shapes.end()) {
      wrong_.push_back(fmt::format("{} is {}, expected {}", quote(name), describe(tensor.dtype, tensor.shape),
                                   describe(*dtypes.begin(), *shapes.begin())));
      return nullptr;
    }
    bytes_ += tensor.bytes.size();
    return &tensor;
  }

  std::span<const std::byte> view(const TensorSpec& spec) {
    const Tensor* tensor = find(spec.name, {spec.dtype}, {spec.shape});
    return tensor != nullptr ? tensor->bytes : std::span<const std::byte>();
  }

  AffineMatrix affine(const AffineSpecs& specs, int rows, int columns, int bits) {
    return {.rows = rows,
            .columns = columns,
            .bits = bits,
            .words = view(specs.words),
            .scales = view(specs.scales),
            .biases = view(specs.biases)};
  }

  void floats(const std::string& name, std::vector<float>& target, std::initializer_list<DType> dtypes,
              std::initializer_list<Extents> shapes) {
    if (const Tensor* tensor = find(name, dtypes, shapes)) target = to_floats(*tensor);
  }

  const TensorStore& store_;
  std::set<std::string, std::less<>> visited_;
  std::vector<std::string> wrong_;
  std::vector<std::string> missing_;
  std::size_t bytes_ = 0;
};
}  // namespace

Weights bind_weights(std::shared_ptr<const TensorStore> store, const Shape& shape) {
  const auto& tensors = store->tensors();
  const bool with_mtp =
      std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) { return is_mtp(entry.first); });
  Weights weights;
  Binder binder(*store);
  visit_tensors(weights, shape, with_mtp, binder);
  binder.raise_faults(shape);
  weights.bytes = binder.bytes();
  weights.pages = weight_pages(store);
  weights.owner = std::move(store);
  return weights;
}

}  // namespace calla
