// The `quantization` block of config.json: 4 bits in groups of 64, the two gates of each layer in 8.
#pragma once
#include <string_view>

#include "base/json.h"
#include "checkpoint/fields.h"
#include "model/shape.h"

namespace calla {

/// Throws Error in plain words for weights of another kind: unquantised, of another method, of other bits,
/// groups or mode.
void check_quantization_kind(const Json& config, std::string_view where);

/// Holds the overrides of `quantization`, and the whole of `quantization_config` where present, against the
/// shape.
void check_quantization(const Fields& top, const Shape& shape);

}  // namespace calla
