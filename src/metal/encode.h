// Dispatches written as one reads them: the kernel, its grid, and its arguments in their order.
#pragma once
#include <array>
#include <cassert>
#include <cstddef>
#include <span>
#include <type_traits>

#include "metal/device.h"
#include "metal/weights.h"

namespace calla::metal {

class ArgumentList {
 public:
  static constexpr std::size_t most = 31;  // Metal's slots for buffers

  void add(const View& view) { push(view); }
  void add(const std::unique_ptr<Buffer>& buffer) { push(View(buffer)); }
  /// A matrix is three arguments: words, scales, biases.
  void add(const MatrixView& matrix) {
    push(matrix.words);
    push(matrix.scales);
    push(matrix.biases);
  }
  /// Anything else is a struct of constants, which must live until the dispatch.
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add(const T& value) { push(constants(value)); }

  std::span<const Argument> arguments() const { return {arguments_.data(), count_}; }

 private:
  void push(const Argument& argument) {
    assert(count_ < most);
    arguments_.at(count_++) = argument;
  }

  std::array<Argument, most> arguments_;
  std::size_t count_ = 0;
};

template <class... Parts>
void dispatch(Pass& pass, const std::unique_ptr<Pipeline>& kernel, Grid grid, const Parts&... parts) {
  ArgumentList list;
  (list.add(parts), ...);
  pass.dispatch(*kernel, list.arguments(), grid);
}

}  // namespace calla::metal
