// The memory of sequences and snapshots beyond the slots' own: in device memory while a slot needs it, and as
// long as there is room; in pinned host memory else.
#pragma once
#include <cstddef>
#include <iosfwd>
#include <memory>
#include <mutex>

#include "cuda/device.h"
#include "cuda/host/pinned_pool.h"
#include "cuda/host/residency.h"
#include "cuda/pool.h"
#include "cuda/staging.h"
#include "model/memory_plan.h"

namespace calla::cuda {

class BlockStore;

/// A block whose memory is copied between device and host. Copies to the host have a stream of their own,
/// which waits for what the backend's has been given so far; nobody waits for them but who needs the block
/// again. A copy back goes in the order of the backend's stream. Bytes moved: the block's. Bound by the bus.
class MemoryBlock final : public Block {
 public:
  /// The store must outlive it.
  MemoryBlock(BlockStore& store, std::shared_ptr<PooledMemory> memory);

  /// Where it is on the device: valid while a slot holds it, and in what the backend's stream is given before
  /// anything else happens to the store.
  std::byte* data() const { return place_.device->data(); }
  /// Copies a part to device memory from wherever it lies, in the order of the backend's stream.
  void copy_to(std::byte* to, std::size_t from, std::size_t bytes) const;
  /// Writes all of it. On any thread, whatever happens to the block meanwhile.
  void write(std::ostream& out, Staging& staging) const;

 private:
  /// Its memory, device or host, and when it is there.
  struct Place {
    std::shared_ptr<PooledMemory> device;
    std::shared_ptr<const PinnedMemory> host;
    std::shared_ptr<const Event> ready;  // null: in the order of the backend's stream
  };

  bool move_out() override;
  void move_in() override;
  void set_place(Place place);

  BlockStore& store_;
  mutable std::mutex mutex_;  // guards place_ where another thread may read it
  Place place_;
};

/// A slot's hold on a block: while it lasts the block is on the device.
class Hold {
 public:
  /// Throws OutOfMemory.
  Hold(BlockStore& store, std::shared_ptr<MemoryBlock> block);
  ~Hold();
  Hold(Hold&& other) noexcept = default;
  Hold& operator=(Hold&& other) noexcept;
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  const std::shared_ptr<MemoryBlock>& block() const { return block_; }

 private:
  void release();

  BlockStore* store_;
  std::shared_ptr<MemoryBlock> block_;
};

class BlockStore {
 public:
  /// `piece` bytes are what blocks mostly have. `stream` is the backend's.
  BlockStore(const SnapshotMemory& budget, std::size_t piece, cudaStream_t stream);
  /// Waits for copies under way.
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;
  BlockStore(BlockStore&&) = delete;
  BlockStore& operator=(BlockStore&&) = delete;

  /// A block of device memory, not cleared. What no slot needs makes room for it. Throws OutOfMemory.
  std::shared_ptr<MemoryBlock> create(std::size_t bytes) {
    return std::make_shared<MemoryBlock>(*this, allocate(bytes));
  }
  Residency& residency() { return residency_; }

 private:
  friend class MemoryBlock;
  std::shared_ptr<PooledMemory> allocate(std::size_t bytes);

  Residency residency_;
  PinnedPool pinned_;
  cudaStream_t stream_;
  Stream out_;     // for copies to the host
  Event reached_;  // how far stream_ was when a copy to the host began
};

}  // namespace calla::cuda
