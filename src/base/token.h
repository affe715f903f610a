#pragma once
#include <cstdint>

namespace calla {

/// An id of the model's vocabulary.
using Token = std::int32_t;

}  // namespace calla
