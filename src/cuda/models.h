// The shapes as types: the CUDA compiler cannot make kernels that are templates of a Shape itself.
#pragma once
#include "model/shape.h"

namespace calla::cuda {

struct Qwen36 {
  static constexpr Shape shape = qwen36_35b;
};
struct Demo {
  static constexpr Shape shape = demo;
};

}  // namespace calla::cuda
