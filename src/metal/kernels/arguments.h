// What the host and the kernels agree on: extents of buffers that both know, and the structs given as
// constants. Read by the C++ compiler and by Metal's: plain 32-bit fields only.
#pragma once

namespace calla_kernels {

enum : unsigned {
  max_rows = 4,           // slots of a decode pass
  no_slot = 0xffffffffU,  // a row that stands for no slot: it is computed and changes nothing
  square_columns = 8,     // sums of squares of the residual stream come for so many columns
  head_rows = 64,         // rows of the head whose best comes as one Peak
  page_positions = 256,   // positions of a page of keys and values
  kv_slabs = 4,           // buffers that hold the pages
  window_rows = 4,        // inputs of the convolution kept: that of position p lies at p % 4
  delta_blocks = 16,      // blocks of 8 value columns that a DeltaNet head's state is worked on in
  single_pass = 256,      // positions that attention takes in one go
  smallest_split = 64,    // positions of a split
  max_splits = 128,
};

/// A slot as the GPU keeps it. Everything before `position` has been computed.
struct SlotState {
  unsigned position;  // tokens whose keys, values and states are there
  unsigned token;     // the last one drawn: the next step computes it
  unsigned ended;     // 1: a step changes nothing
  unsigned draws;     // tokens drawn since the sampling was set
};

/// The slots of the rows of a decode pass.
struct StepRows {
  unsigned slots[max_rows];
};

/// The largest logit among head_rows neighbours, the lowest id among equals; infinite where one of them is
/// not finite.
struct Peak {
  float logit;
  unsigned token;
};

/// Where a row of the mixture of experts goes.
struct Route {
  unsigned expert[8];
  float share[8];
  float shared;  // the shared expert's share
};

struct ProjectArguments {
  unsigned ends[4];  // row of the result behind the last one of each matrix
};

struct DeltaArguments {
  unsigned slots[max_rows];
  unsigned state_stride;   // floats between the states of two slots
  unsigned window_stride;  // floats between the windows of two slots
};

struct AttentionArguments {
  unsigned slots[max_rows];
  unsigned layer;           // of the attention layers
  unsigned max_pages;       // page ids of a slot in the page table
  unsigned pages_per_slab;  // page p lies in slab p / pages_per_slab
  unsigned page_stride;     // bfloat16 values of a page: [attention layer][KV head][keys, values][256][256]
  unsigned splits;          // of the results' buffer: the most that any row has
};

/// Positions of a split of the context when attention covers `positions` of them: all, up to single_pass;
/// else the smallest power of two from smallest_split on that gives no more than max_splits. Depends on
/// nothing else, so that a row's result does not change with what runs beside it.
inline unsigned split_positions(unsigned positions) {
  if (positions <= single_pass) return single_pass;
  unsigned length = smallest_split;
  while (positions > length * max_splits) length *= 2;
  return length;
}
inline unsigned split_count(unsigned positions) {
  const unsigned length = split_positions(positions);
  return (positions + length - 1) / length;
}

}  // namespace calla_kernels
