// What the machine itself can do, measured: the ceilings of every speed.
#pragma once

namespace calla::cli {

/// Bytes per second that `threads` threads read together from memory: the best of several passes over half a
/// gigabyte, in large pages where the system has them.
double read_bandwidth(int threads);

/// "Multiply-add peak, float32": multiply-adds per second of `threads` threads on values that stay in
/// registers, with the widest vectors of the processor; the best of several passes.
double multiply_add_peak(int threads);

}  // namespace calla::cli
