// The positions of slots.
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/sample_arguments.h"
#include "metal/kernels/slots.h"

using namespace metal;
using namespace calla_kernels;

// position + 1 of the rows' slots that have not ended. Grid (1), 32 threads. To be run when nothing of a
// decode pass needs the position any more.
kernel void advance(device SlotState* slots [[buffer(0)]],
                    constant StepRows& rows [[buffer(1)]],
                    uint thread_index [[thread_index_in_threadgroup]]) {
  if (thread_index >= max_rows) return;
  const uint slot = rows.slots[thread_index];
  if (is_live(slot, slots)) slots[slot].position += 1;
}

// Sets a slot's position and the token that the next step computes; the slot has not ended. Grid (1), 32
// threads.
kernel void place_slot(device SlotState* slots [[buffer(0)]],
                       constant PlaceArguments& place [[buffer(1)]],
                       uint thread_index [[thread_index_in_threadgroup]]) {
  if (thread_index != 0) return;
  slots[place.slot].position = place.position;
  slots[place.slot].token = place.token;
  slots[place.slot].ended = 0;
}
