// What this machine does at best with the kernels' instructions: the ceilings of every speed.
#pragma once

namespace calla::cpu {

/// Bytes a second that `threads` threads read together from memory: the best of several passes over far
/// more than the cache holds, in large pages where the system has them.
double read_bandwidth(int threads);

/// Multiply-adds a second of `threads` threads: 4-bit weights by 8-bit activations that stay in registers,
/// the best of several passes.
double product_peak(int threads);

}  // namespace calla::cpu
