// Pinned host memory, which the device copies to and from while everybody else goes on.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace calla::cuda {

class PinnedPool;

/// Some memory of a pool, in pieces that need not lie together. Goes back to the pool at its end, on whatever
/// thread that comes.
class PinnedMemory {
 public:
  PinnedMemory(PinnedPool& pool, std::vector<std::byte*> pieces) : pool_(&pool), pieces_(std::move(pieces)) {}
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  PinnedMemory& operator=(PinnedMemory&&) = delete;

  /// Calls `visit(std::byte* at, std::size_t count, std::size_t done)` for each stretch of a part of it.
  template <class Visit>
  void visit(std::size_t from, std::size_t bytes, Visit visit) const;

 private:
  PinnedPool* pool_;
  std::vector<std::byte*> pieces_;
};

/// Pieces of one size, so that whatever goes leaves room for whatever comes. Pinning memory takes the system
/// a while, so a thread of its own pins ahead of need, a slab at a time up to a limit: who takes memory never
/// waits.
class PinnedPool {
 public:
  /// Where pinned memory comes from; null where the system refuses. Called on any thread.
  struct Source {
    std::function<std::byte*(std::size_t bytes)> pin;
    std::function<void(std::byte* memory, std::size_t bytes)> unpin;
  };

  /// Pins the first slab at once. Of `limit` bytes, only whole pieces are used.
  PinnedPool(std::size_t piece_bytes, std::size_t slab_bytes, std::uint64_t limit, Source source);
  /// All that was taken must be back, and no copy under way.
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  PinnedPool(PinnedPool&&) = delete;
  PinnedPool& operator=(PinnedPool&&) = delete;

  /// Room for so many bytes; nothing while there is none. More may be on its way.
  std::optional<PinnedMemory> take(std::size_t bytes);
  /// Waits for what is on its way, or given back meanwhile; false where there is nothing to wait for.
  bool wait_for_more();
  std::size_t piece_bytes() const { return piece_bytes_; }
  std::uint64_t pinned_bytes() const;

 private:
  friend class PinnedMemory;
  struct Slab {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };

  void give_back(std::span<std::byte* const> pieces);
  std::size_t next_slab() const;  // bytes; 0 where there will be no more
  bool growing() const { return free_.size() < wanted_ && next_slab() > 0; }
  void add(Slab slab);
  void run();

  std::size_t piece_bytes_;
  std::size_t slab_bytes_;
  std::uint64_t limit_;
  Source source_;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<Slab> slabs_;
  std::vector<std::byte*> free_;
  std::uint64_t pinned_ = 0;
  std::size_t wanted_ = 0;  // pieces that are kept free as long as the limit lets it
  bool refused_ = false;
  bool closing_ = false;

  std::thread thread_;  // last: it starts when everything above exists
};

template <class Visit>
void PinnedMemory::visit(std::size_t from, std::size_t bytes, Visit visit) const {
  const std::size_t piece = pool_->piece_bytes();
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t at = from + done;
    const std::size_t count = std::min(bytes - done, piece - at % piece);
    visit(pieces_[at / piece] + at % piece, count, done);
    done += count;
  }
}

}  // namespace calla::cuda
