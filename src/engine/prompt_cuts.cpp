#include "engine/prompt_cuts.h"

#include <algorithm>
#include <cassert>

namespace calla {
namespace {
constexpr int step = 2048;
constexpr int spacing = 512;

int rounded_down(int position, int grain) { return position / grain * grain; }
}  // namespace

int last_cut(int length, int grain) { return length < grain ? 0 : rounded_down(length - grain, grain); }

std::vector<int> kept_positions(int length, std::span<const int> boundaries, int grain) {
  const int last = last_cut(length, grain);
  if (last == 0) return {};
  std::vector<int> candidates;
  for (const int boundary : boundaries) {
    const int cut = rounded_down(std::clamp(boundary, 0, length), grain);
    if (cut > 0 && cut < last) candidates.push_back(cut);
  }
  std::sort(candidates.begin(), candidates.end());
  const int last_message = candidates.empty() ? 0 : candidates.back();
  for (int cut = step; cut < last; cut += step) candidates.push_back(rounded_down(cut, grain));
  std::sort(candidates.begin(), candidates.end());

  std::vector<int> kept{last};
  for (std::size_t i = candidates.size(); i-- > 0;) {
    const int at = candidates[i];
    if (at > 0 && at != kept.back() && (at == last_message || kept.back() - at >= spacing))
      kept.push_back(at);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

int next_piece(int read, int length, int stop, int most, int grain) {
  assert(read % grain == 0 && most % grain == 0 && most >= 2 * grain);
  if (stop < length) return std::min(most, stop - read);
  const int rest = length - read;
  if (rest <= most) return rest;
  return rest - most < grain ? most - grain : most;
}

}  // namespace calla
