// What this GPU does at best: the ceilings of every speed. Measured, which takes a fraction of a second each.
#pragma once

namespace calla::cuda {

/// Whether this program has code for the current device.
bool has_code_for_device();

/// Bytes a second that a kernel reads from device memory: the best of several passes over far more than the
/// cache holds.
double read_bandwidth();

/// Multiply-adds a second of the matrix units with half operands and float accumulators, the operands in
/// registers: the best of several passes.
double product_peak();

}  // namespace calla::cuda
