// Shapes as the command line names them.
#pragma once
#include <string_view>

#include "model/shape.h"

namespace calla::cli {

/// "35b" or "demo", or with a colon and the number of first layers that are meant: "35b:4". Throws UsageError
/// for anything else.
Shape parse_synthetic(std::string_view text);

}  // namespace calla::cli
