#include "cuda/host/pinned_pool.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace calla::cuda {

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : pool_(other.pool_), pieces_(std::exchange(other.pieces_, {})) {}

PinnedMemory::~PinnedMemory() {
  if (!pieces_.empty()) pool_->give_back(pieces_);
}

PinnedPool::PinnedPool(std::size_t piece_bytes, std::size_t slab_bytes, std::uint64_t limit, Source source)
    : piece_bytes_(piece_bytes),
      slab_bytes_(std::max(slab_bytes / piece_bytes, std::size_t{1}) * piece_bytes),
      limit_(limit / piece_bytes * piece_bytes),
      source_(std::move(source)) {
  const std::size_t first = next_slab();
  if (first == 0) return;
  add({source_.pin(first), first});
  thread_ = std::thread([this] { run(); });
}

PinnedPool::~PinnedPool() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  assert(free_.size() * piece_bytes_ == pinned_);
  for (const Slab& slab : slabs_) source_.unpin(slab.memory, slab.bytes);
}

std::optional<PinnedMemory> PinnedPool::take(std::size_t bytes) {
  const std::size_t count = (bytes + piece_bytes_ - 1) / piece_bytes_;
  const std::lock_guard lock(mutex_);
  std::vector<std::byte*> pieces;
  if (free_.size() >= count) {
    pieces.assign(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
  }
  // What is asked for next is likely to be as much.
  wanted_ = std::max(wanted_, 2 * count);
  if (growing()) changed_.notify_all();
  if (pieces.size() < count) return std::nullopt;
  return PinnedMemory(*this, std::move(pieces));
}

bool PinnedPool::wait_for_more() {
  std::unique_lock lock(mutex_);
  const std::size_t before = free_.size();
  changed_.wait(lock, [&] { return free_.size() > before || !growing(); });
  return free_.size() > before;
}

void PinnedPool::give_back(std::span<std::byte* const> pieces) {
  const std::lock_guard lock(mutex_);
  free_.insert(free_.end(), pieces.begin(), pieces.end());
  changed_.notify_all();
}

std::uint64_t PinnedPool::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pinned_;
}

std::size_t PinnedPool::next_slab() const {
  return refused_ ? 0 : static_cast<std::size_t>(std::min<std::uint64_t>(slab_bytes_, limit_ - pinned_));
}

void PinnedPool::add(Slab slab) {
  if (slab.memory == nullptr) {
    refused_ = true;
    return;
  }
  pinned_ += slab.bytes;
  for (std::size_t at = 0; at < slab.bytes; at += piece_bytes_) free_.push_back(slab.memory + at);
  slabs_.push_back(slab);
}

void PinnedPool::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || growing(); });
    if (closing_) return;
    const std::size_t bytes = next_slab();
    lock.unlock();
    std::byte* const memory = source_.pin(bytes);
    lock.lock();
    add({memory, bytes});
    changed_.notify_all();
  }
}

}  // namespace calla::cuda
