// The kernels of the CPU backend, as tables of functions: one table an instruction set, chosen at run time.
//
// The kernel sources are compiled once a level with the compiler's flags of that level. They include nothing
// of the standard library but fixed-size types, so that no inline function compiled for a newer processor can
// become the copy that the linker keeps for everybody.
//
// Weights come as panels (cpu/panels.h). Activations come quantised, or as float32. `rows` picks the rows of
// an activation that a kernel works on, so that the tokens of an expert need not be gathered.
#pragma once
#include <cstddef>
#include <cstdint>

namespace calla::cpu {

/// Quantised activations of many rows (tokens), in groups of 64 columns, each group with its own scale.
///   One plane:  x = scale * a,             a an int8.                  Relative error about 5e-3.
///   Two planes: x = scale * (128 h + l),   h in [-127, 127], l in [-64, 63]. About 5e-5.
/// A group of a row is [32 even columns | 32 odd columns] of int8 a plane, high plane first. `factors` holds
/// two floats a group: the scale, and the scale times the sum of the group's integers.
struct QuantisedRows {
  std::int8_t* values;  // [rows][columns / 64][planes][64]
  float* factors;       // [rows][columns / 64][2]
  int columns;
  int planes;
};

/// Attention of some queries over the positions seen so far, not yet divided by the sum of the weights.
struct AttentionState {
  float* peak;  // [rows] the largest score so far
  float* sum;   // [rows] of exp(score - peak)
  float* out;   // [rows][256] of exp(score - peak) * value
};

struct KernelTable {
  const char* name;  // "AVX-512"

  // --- rows of float32

  /// y = gain * x / sqrt(mean(x^2) + 1e-6); n a multiple of 16. y may be x.
  void (*rms_norm)(const float* x, const float* gain, int n, float* y);
  /// `groups` groups of 64 of one row into its `values` [groups][planes][64] and `factors` [groups][2].
  void (*quantise)(const float* x, int groups, int planes, std::int8_t* values, float* factors);
  /// sums[g] = the sum of x[64 g .. 64 g + 63].
  void (*group_sums)(const float* x, int n, float* sums);

  // --- linear: one panel of 16 output rows against `count` rows; out is [count][16]

  /// 4-bit weights. Integer products are exact; each group adds scale_w * scale_a * t + bias_w * sum_a,
  /// groups in ascending order. Bytes: the panel, once. Bound by memory for few rows, by integer products for
  /// many.
  void (*linear4)(const std::byte* panel, QuantisedRows x, const std::int32_t* rows, int count, float* out);
  /// 8-bit weights, float32 activations x [.][stride] and their group sums [.][columns / 64].
  void (*linear8)(const std::byte* panel, int columns, const float* x, const float* sums, int count,
                  float* out);

  /// y[rows[i]][0..15] += share * tile[i][0..15]; shares null: 1. y has `stride` floats a row.
  void (*scatter_add)(const float* tile, const std::int32_t* rows, const float* shares, int count, float* y,
                      std::size_t stride);
  /// out[i][0..15] = silu(gate[i]) * up[i], tiles of [count][16]; out has 64 floats a row.
  void (*swiglu)(const float* gate, const float* up, int count, float* out);

  // --- Gated DeltaNet

  /// The causal convolution of `channels` channels (a multiple of 16) and SiLU, in place on x
  /// [tokens][stride]. taps [4][taps_stride], oldest first; window [3][window_stride] holds the last inputs
  /// and is advanced.
  void (*convolve)(float* x, std::size_t stride, int tokens, int channels, const float* taps,
                   std::size_t taps_stride, float* window, std::size_t window_stride);
  /// x *= scale / sqrt(sum(x^2) + 1e-6), 128 floats.
  void (*l2_normalise)(float* x, float scale);
  /// The gated delta rule of one value head over `tokens` tokens; state [4 blocks of 32 v][128 (k)][32 (v)].
  ///   S = g S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q
  /// q, k, v are 128 floats every `stride`, out every `out_stride`; decay (g) and beta one a token.
  void (*delta_scan)(float* state, const float* q, const float* k, const float* v, std::size_t stride,
                     const float* decay, const float* beta, int tokens, float* out, std::size_t out_stride);
  /// out = gain * x / rms(x) * silu(z), 128 floats. out may be x.
  void (*gated_norm)(const float* x, const float* gain, const float* z, float* out);

  // --- attention, heads of 256

  /// The first 64 dims turned as pairs (j, j + 32): turn is [cos 32 | sin 32].
  void (*rotate)(float* head, const float* turn);
  /// Adds positions (a multiple of 32, in the layout of cpu/kv_cache.h) of one KV head to the state of `rows`
  /// queries q [rows][256], already scaled. Row i sees those below limits[i].
  void (*attend)(const float* q, int rows, const std::uint16_t* keys, const std::uint16_t* values,
                 int positions, const std::int32_t* limits, AttentionState state);
  /// Folds `other` into `state`, both of one row.
  void (*merge)(AttentionState state, AttentionState other);
  /// out = state.out / state.sum * sigmoid(gate), 256 floats.
  void (*gate_output)(AttentionState state, const float* gate, float* out);

  // --- the machine at its best; what they return means nothing

  /// rounds * spin_floats_size multiply-adds of float32.
  float (*spin_floats)(std::int64_t rounds);
  int spin_floats_size;
  /// rounds * spin_products_size multiply-adds of the bytes that linear4 multiplies.
  std::int32_t (*spin_products)(std::int64_t rounds);
  int spin_products_size;
  /// Reads lines of 64 bytes, an even number of them.
  std::int32_t (*read_lines)(const std::byte* data, std::size_t lines);
};

/// What this processor and its operating system can run, best first.
enum class Level { avx512, avx2, portable };

/// The table of a level, or null where the machine or the build lacks it.
const KernelTable* kernels(Level level);
/// The best of them.
const KernelTable& best_kernels();

}  // namespace calla::cpu
