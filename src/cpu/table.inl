// The table of the kernels that a source has compiled.
#pragma once
#include "cpu/attention.inl"
#include "cpu/delta.inl"
#include "cpu/linear.inl"
#include "cpu/measure.inl"
#include "cpu/rows.inl"

namespace calla::cpu {
namespace {
constexpr KernelTable table(const char* name) {
  return {.name = name,
          .rms_norm = rms_norm,
          .quantise = quantise,
          .group_sums = group_sums,
          .linear4 = linear4,
          .linear8 = linear8,
          .scatter_add = scatter_add,
          .swiglu = swiglu,
          .convolve = convolve,
          .l2_normalise = l2_normalise,
          .delta_scan = delta_scan,
          .gated_norm = gated_norm,
          .rotate = rotate,
          .attend = attend,
          .merge = merge,
          .gate_output = gate_output,
          .spin_floats = spin_floats,
          .spin_floats_size = chains * lanes,
          .spin_products = spin_products,
          .spin_products_size = chains * lanes * 4,
          .read_lines = read_lines};
}
}  // namespace
}  // namespace calla::cpu
