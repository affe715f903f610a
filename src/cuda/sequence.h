// The slots' sequences in device memory, and their snapshots.
#pragma once
#include <cstddef>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include "cuda/device.h"
#include "cuda/pool.h"
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

class SequenceSnapshot;

/// All slots' states, windows, pages and logits, at addresses that never change; everything happens in the
/// order of the stream.
class Sequences {
 public:
  Sequences(const Shape& shape, int slots, int context, cudaStream_t stream);

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
  /// Makes room for positions below `positions`. Throws Error when the device has none.
  void reserve(int slot, int positions);

  /// The first `position` tokens of a slot, whose newest logits are what the slot's row has.
  std::unique_ptr<SequenceSnapshot> snapshot(int slot, int position);
  void restore(int slot, const SequenceSnapshot& snapshot);
  /// Reads what SequenceSnapshot::save has written.
  std::unique_ptr<SequenceSnapshot> load(std::istream& in, const SequenceSnapshot* base);

 private:
  void set_pages(int slot, std::vector<Page> pages, std::size_t first_changed);
  Page copy_of(const Page& page);
  Page empty_page();

  SequenceBytes bytes_;
  int context_;
  int max_pages_;
  cudaStream_t stream_;
  std::vector<std::vector<Page>> pages_;  // of each slot
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
  SequenceSnapshot(int position, std::vector<Page> pages, Page rest, const SequenceBytes& bytes,
                   Event copied);

  int position() const override { return position_; }
  std::vector<MemoryPiece> memory() const override;
  void save(std::ostream& out, int from) const override;

  const std::vector<Page>& pages() const { return pages_; }
  /// Recurrent states, windows and logits, one behind the other.
  const std::byte* rest() const { return rest_->data(); }

 private:
  int position_;
  std::vector<Page> pages_;  // the last one, where it is not full, is its own
  Page rest_;
  SequenceBytes bytes_;
  Event copied_;  // when all of it is there
};

}  // namespace calla::cuda
