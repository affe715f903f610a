// The demonstration checkpoint, loaded once a test program.
#pragma once
#include "checkpoint/loader.h"
#include "model/weights.h"
#include "support/support.h"

namespace calla::test {

inline const Weights& demo_weights() {
  static const Weights weights = bind_weights(TensorStore::open(demo_model()), demo);
  return weights;
}

}  // namespace calla::test
