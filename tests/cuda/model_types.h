// The shapes as the types of a typed test.
#pragma once
#include <string>

#include <gtest/gtest.h>

#include "cuda/models.h"

namespace calla::cuda {

using Models = testing::Types<Demo, Qwen36>;

struct ModelNames {
  template <class Model>
  static std::string GetName(int) {
    return same_model(Model::shape, demo) ? "Demo" : "Qwen36";
  }
};

}  // namespace calla::cuda
