// The slots' sequences in device memory, and their snapshots.
#pragma once
#include <cstddef>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include "cuda/block_store.h"
#include "cuda/device.h"
#include "cuda/state.h"
#include "model/backend.h"

namespace calla::cuda {

/// Extents of what a sequence carries, in bytes.
struct SequenceBytes {
  std::size_t page = 0;
  std::size_t recurrent = 0;  // of all layers
  std::size_t windows = 0;    // of all layers
  std::size_t logits = 0;
};
SequenceBytes sequence_bytes(const Shape& shape);

/// Pages that hold some positions.
constexpr int page_count(int positions) { return (positions + page_positions - 1) / page_positions; }

/// A page of keys and values, shared by the sequences and snapshots that have its positions in common.
using Page = std::shared_ptr<MemoryBlock>;

class SequenceSnapshot;

/// All slots' states, windows, pages and logits, at addresses that never change; everything happens in the
/// order of the stream.
class Sequences {
 public:
  Sequences(const Shape& shape, int slots, int context, const SnapshotMemory& snapshots, cudaStream_t stream);

  // For kernels, all in device memory.
  const PageTable* page_tables() const { return page_tables_.data(); }    // [slots]
  float* const* recurrent() const { return recurrent_pointers_.data(); }  // [slots]
  float* const* windows() const { return window_pointers_.data(); }       // [slots]
  float* logits() const { return logits_.data(); }                        // [slots][vocabulary]
  // Of a slot.
  PageTable pages(int slot) const;
  float* recurrent_of(int slot) const;
  float* windows_of(int slot) const;
  float* logits_of(int slot) const;

  /// Empties a slot.
  void clear(int slot);
  /// Makes room for positions below `positions`. Throws OutOfMemory when the device has none.
  void reserve(int slot, int positions);

  /// The first `position` tokens of a slot, whose newest logits are what the slot's row has. Throws
  /// OutOfMemory.
  std::unique_ptr<SequenceSnapshot> snapshot(int slot, int position);
  /// Throws OutOfMemory.
  void restore(int slot, const SequenceSnapshot& snapshot);
  /// Reads what SequenceSnapshot::save has written. Throws OutOfMemory.
  std::unique_ptr<SequenceSnapshot> load(std::istream& in, const SequenceSnapshot* base);

  /// Moves snapshots to the host while they hold more of the device's memory than they may.
  void settle() { store_.residency().settle(); }

 private:
  void point_to(int slot, std::span<const Hold> pages, std::size_t first);
  Page empty_page();
  std::size_t rest_bytes() const { return bytes_.recurrent + bytes_.windows + bytes_.logits; }
  /// Calls `visit(float* of_slot, std::size_t at, std::size_t bytes)` for what a snapshot has besides pages.
  template <class Visit>
  void visit_rest(int slot, Visit visit) const;

  SequenceBytes bytes_;
  int context_;
  int max_pages_;
  cudaStream_t stream_;
  BlockStore store_;
  std::vector<std::vector<Hold>> pages_;  // of each slot
  DeviceArray<float> recurrent_;
  DeviceArray<float> windows_;
  DeviceArray<float> logits_;
  DeviceArray<__nv_bfloat16*> page_pointers_;  // [slots][max_pages]
  DeviceArray<PageTable> page_tables_;
  DeviceArray<float*> recurrent_pointers_;
  DeviceArray<float*> window_pointers_;
};

/// Shares the full pages of its sequence, and has a copy of all else.
class SequenceSnapshot final : public Snapshot {
 public:
  SequenceSnapshot(int position, std::vector<Page> pages, std::shared_ptr<MemoryBlock> rest, Event copied);

  int position() const override { return position_; }
  std::vector<MemoryPiece> memory() const override;
  void save(std::ostream& out, int from) const override;

  const std::vector<Page>& pages() const { return pages_; }
  /// Recurrent states, windows and logits, one behind the other.
  MemoryBlock& rest() const { return *rest_; }

 private:
  int position_;
  std::vector<Page> pages_;  // the last one, where it is not full, is its own
  std::shared_ptr<MemoryBlock> rest_;
  Event copied_;  // when all of it has been written, wherever it has gone since
};

}  // namespace calla::cuda
