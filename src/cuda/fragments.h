// Where the halves of the activations of decode lie in shared memory.
#pragma once

namespace calla::cuda {

// The B operand of m16n8k16 for a group of 64 columns of a row: four instructions, two registers each, so
// eight words for each lane % 4, once of high halves and once of low ones. Words 0 .. 3 of all lie together,
// then words 4 .. 7: a lane loads four at once, and eight lanes that load for one row meet in no bank; nor do
// the 32 that store at once, each a word of its own for four groups.
inline constexpr int fragment_quad = 32 + 4;
inline constexpr int fragment_words = 2 * fragment_quad;

/// Of the high (0) or low (1) halves, for lanes with lane % 4 == t.
constexpr int fragment_word(int half, int t, int word) {
  return word / 4 * fragment_quad + half * 16 + t * 4 + word % 4;
}

}  // namespace calla::cuda
