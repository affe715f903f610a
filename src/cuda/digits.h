// Where the digits of the activations of decode lie in shared memory.
#pragma once

namespace calla::cuda {

// The B operand of m16n8k32 for a group of 64 columns of a row: two instructions, two registers each, so four
// words for each plane of digits and each lane % 4: a lane loads them at once. The gap between two pairs of
// groups lets the 32 lanes that store at once, each a word of four groups, meet in no bank.
inline constexpr int digit_planes = 3;
inline constexpr int group_digit_words = digit_planes * 16;

/// Of a plane (0: the highest digits) of a group, for lanes with lane % 4 == t, the columns 16 h .. 16 h
/// + 15.
constexpr int digit_word(int group, int plane, int t, int h) {
  return group * group_digit_words + group / 2 * 4 + plane * 16 + t * 4 + h;
}
constexpr int digit_words(int groups) { return digit_word(groups - 1, digit_planes, 0, 0); }

}  // namespace calla::cuda
