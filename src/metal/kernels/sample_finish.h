// What follows from a token that is drawn, for the slot and for the host.
#pragma once
#include <metal_stdlib>

#include "metal/kernels/arguments.h"
#include "metal/kernels/sample_arguments.h"

namespace calla_kernels {

/// For one thread. Whether the token was appended.
inline bool finish_draw(uint token,
                        float logit,
                        device const SlotSampling& s,
                        device SlotState& state,
                        device SampleRecord& record) {
  bool is_end = false;
  for (uint i = 0; i < s.end_tokens; ++i) is_end = is_end || s.end_token[i] == token;
  state.draws += 1;
  if (is_end) {
    state.ended = 1;
  } else {
    state.token = token;
  }
  record.flags = uint(sample_has_token) | (is_end ? uint(sample_is_end) : 0U);
  record.token = token;
  record.logit = logit;
  return !is_end;
}

/// For one thread, of a row with a logit that is not finite.
inline void finish_fault(device SlotState& state, device SampleRecord& record) {
  state.ended = 1;
  record.flags = sample_is_fault;
}

}  // namespace calla_kernels
