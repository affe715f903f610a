// Which rows of a decode pass may change anything.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/arguments.h"

namespace calla_kernels {

/// Whether a row's slot takes this step. Rows of which it does not give zeros and change nothing.
inline bool is_live(uint slot, device const SlotState* slots) {
  return slot != no_slot && slots[slot].ended == 0;
}

}  // namespace calla_kernels
