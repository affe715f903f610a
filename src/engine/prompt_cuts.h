// Where a prompt is cut: into the pieces that are read, and at the positions whose state is kept.
//
// The recurrent state cannot be cut back, so a kept state serves another prompt only if that prompt, read
// from its beginning, would have had the very same state there. Backend::prefill_grain makes it so: all cuts
// are multiples of the grain, and the last piece has at least a grain. The state at a cut then depends on the
// tokens before it alone, and answers do not depend on what was in the cache.
#pragma once
#include <span>
#include <vector>

namespace calla {

/// The last position at which a prompt of `length` tokens may be cut; 0 where it may not be.
int last_cut(int length, int grain);

/// Positions of a prompt whose state is worth keeping, ascending, all of them cuts:
/// - the last cut, from which the next turn and a second answer go on;
/// - where the last message begins, for an edit of it;
/// - where earlier messages begin, for branches, and every 2,048 tokens within long ones, where at least 512
///   tokens lie between two. A state of the 35B weighs as much as the keys and values of 3,200 tokens, so
///   steps of 2,048 make a long prompt's entry two and a half times as large as without any, and cost at most
///   2,047 tokens of reading after a change in the middle of a long document.
/// `boundaries` are where messages begin; those outside of the prompt are ignored.
std::vector<int> kept_positions(int length, std::span<const int> boundaries, int grain);

/// How many tokens to read next: at most `most` (a multiple of the grain, at least two of them), up to
/// `stop`, a cut or the end. `read` is a cut.
int next_piece(int read, int length, int stop, int most, int grain);

}  // namespace calla
