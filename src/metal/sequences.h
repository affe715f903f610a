// What the slots carry from token to token, in memory that the GPU shares, and its snapshots.
#pragma once
#include <cstddef>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include "metal/device.h"
#include "metal/page_pool.h"
#include "model/backend.h"
#include "model/shape.h"

namespace calla::metal {

/// Extents of what a sequence carries, in bytes.
struct SequenceBytes {
  std::size_t page = 0;
  std::size_t states = 0;   // recurrent, of all layers
  std::size_t windows = 0;  // of all layers
  std::size_t logits = 0;
  std::size_t peaks = 0;
};
SequenceBytes sequence_bytes(const Shape& shape);

/// Pages that hold some positions.
constexpr int page_count(int positions) {
  constexpr int page = calla_kernels::page_positions;
  return (positions + page - 1) / page;
}

class SequenceSnapshot;

/// All slots' states, windows, pages and logits. What changes them here may be called only while no pass is
/// under way, but for reserve().
class Sequences {
 public:
  Sequences(Device& device, const Shape& shape, int slots, int context);

  // For kernels.
  const PagePool& pool() const { return pool_; }
  View slot_states() const { return slot_states_; }  // SlotState [slots]
  View page_table() const { return page_table_; }    // uint32 [slots][max_pages]
  std::uint32_t max_pages() const { return max_pages_; }
  View states(int delta_layer) const;   // float [slots][...][head][value][key]: the first slot's of a layer
  View windows(int delta_layer) const;  // float [slots][...][4][channels]
  std::uint32_t state_stride() const { return static_cast<std::uint32_t>(bytes_.states / sizeof(float)); }
  std::uint32_t window_stride() const { return static_cast<std::uint32_t>(bytes_.windows / sizeof(float)); }
  View logits() const { return logits_; }  // float [slots][vocabulary]
  View peaks() const { return peaks_; }    // Peak [slots][vocabulary / head_rows]

  std::span<const float> logits_of(int slot) const;

  /// The slot's next token is the first that is drawn with new parameters.
  void begin_drawing(int slot) const;
  /// Makes `token` the one that the next pass computes.
  void give(int slot, Token token) const;
  /// Empties a slot.
  void clear(int slot);
  /// Makes room for positions below `positions`. Passes may be under way: they do not look at the new pages.
  void reserve(int slot, int positions);

  /// The first `position` tokens of a slot, whose newest logits are what the slot's row has.
  std::unique_ptr<SequenceSnapshot> snapshot(int slot, int position) const;
  void restore(int slot, const SequenceSnapshot& snapshot);
  /// Reads what SequenceSnapshot::save has written.
  std::unique_ptr<SequenceSnapshot> load(std::istream& in, const SequenceSnapshot* base) const;

 private:
  void set_pages(int slot, std::vector<PageUse> pages);
  calla_kernels::SlotState& state(int slot) const;
  void place(int slot, int position) const;
  /// The parts of a slot that are not pages, in the order of a snapshot.
  std::array<std::span<std::byte>, 4> parts(int slot) const;

  SequenceBytes bytes_;
  int context_;
  std::uint32_t max_pages_;
  std::size_t state_layer_;   // bytes of a layer
  std::size_t window_layer_;  // bytes of a layer
  PagePool pool_;
  std::vector<std::vector<PageUse>> pages_;  // of each slot
  std::unique_ptr<Buffer> slot_states_;
  std::unique_ptr<Buffer> page_table_;
  std::unique_ptr<Buffer> states_;
  std::unique_ptr<Buffer> windows_;
  std::unique_ptr<Buffer> logits_;
  std::unique_ptr<Buffer> peaks_;
};

/// Shares the full pages of its sequence, and has a copy of all else.
class SequenceSnapshot final : public Snapshot {
 public:
  SequenceSnapshot(int position, std::vector<std::shared_ptr<Page>> pages, std::vector<std::byte> rest,
                   std::size_t page_bytes);

  int position() const override { return position_; }
  std::vector<MemoryPiece> memory() const override;
  void save(std::ostream& out, int from) const override;

  const std::vector<std::shared_ptr<Page>>& pages() const { return pages_; }
  /// States, windows, logits and peaks, one behind the other.
  std::span<const std::byte> rest() const { return rest_; }

 private:
  int position_;
  std::vector<std::shared_ptr<Page>> pages_;  // the last one, where it is not full, is its own
  std::vector<std::byte> rest_;
  std::size_t page_bytes_;
};

}  // namespace calla::metal
