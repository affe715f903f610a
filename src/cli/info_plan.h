// calla info --backend metal --plan: what a token takes on an Apple GPU.
#pragma once
#include "model/shape.h"

namespace calla::cli {

/// Prints it for some lengths of context up to `context`.
void print_decode_plan(const Shape& shape, int context);

}  // namespace calla::cli
