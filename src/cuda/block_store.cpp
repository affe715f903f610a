#include "cuda/block_store.h"

#include <optional>
#include <span>
#include <utility>

#include <sys/mman.h>

#include "model/backend.h"
#include "model/snapshot_stream.h"

namespace calla::cuda {
namespace {

// Small, since pinning may keep the driver from everything else.
constexpr std::size_t slab_bytes = std::size_t{32} << 20U;

/// Touching memory is most of the work of pinning it, and needs no lock of the driver.
std::byte* pin(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);  // where the system has them; else as it is
  constexpr std::size_t page = 4096;
  auto* const data = static_cast<std::byte*>(memory);
  for (std::size_t at = 0; at < bytes; at += page) data[at] = std::byte{0};
  if (cudaHostRegister(memory, bytes, cudaHostRegisterDefault) != cudaSuccess) {
    cudaGetLastError();
    munmap(memory, bytes);
    return nullptr;
  }
  return data;
}

void unpin(std::byte* memory, std::size_t bytes) {
  cudaHostUnregister(memory);
  munmap(memory, bytes);
}

}  // namespace

MemoryBlock::MemoryBlock(BlockStore& store, std::shared_ptr<PooledMemory> memory)
    : Block(store.residency(), memory->bytes()),
      store_(store),
      place_{.device = std::move(memory), .host = nullptr, .ready = nullptr} {}

void MemoryBlock::set_place(Place place) {
  // What it was goes back outside of the lock.
  const std::lock_guard lock(mutex_);
  std::swap(place_, place);
}

bool MemoryBlock::move_out() {
  std::optional<PinnedMemory> room = store_.pinned_.take(bytes());
  if (!room) return false;
  const auto host = std::make_shared<const PinnedMemory>(std::move(*room));
  cudaStream_t out = store_.out_.get();
  check(cudaEventRecord(store_.reached_.get(), store_.stream_), "moving a state to the host");
  check(cudaStreamWaitEvent(out, store_.reached_.get()), "moving a state to the host");
  host->visit(0, bytes(), [&](std::byte* at, std::size_t count, std::size_t done) {
    check(cudaMemcpyAsync(at, data() + done, count, cudaMemcpyDeviceToHost, out),
          "moving a state to the host");
  });
  const auto ready = std::make_shared<const Event>(make_event());
  check(cudaEventRecord(ready->get(), out), "moving a state to the host");
  place_.device->give_back_in(out);
  set_place({.device = nullptr, .host = host, .ready = ready});
  return true;
}

void MemoryBlock::move_in() {
  std::shared_ptr<PooledMemory> device = store_.allocate(bytes());
  copy_to(device->data(), 0, bytes());
  const auto ready = std::make_shared<const Event>(make_event());
  check(cudaEventRecord(ready->get(), store_.stream_), "moving a state back");
  // Where the host memory goes next, a copy to it waits for this one.
  set_place({.device = std::move(device), .host = nullptr, .ready = ready});
}

void MemoryBlock::copy_to(std::byte* to, std::size_t from, std::size_t bytes) const {
  cudaStream_t stream = store_.stream_;
  if (place_.device != nullptr) {
    check(cudaMemcpyAsync(to, data() + from, bytes, cudaMemcpyDeviceToDevice, stream), "copying a state");
    return;
  }
  check(cudaStreamWaitEvent(stream, place_.ready->get()), "moving a state back");
  place_.host->visit(from, bytes, [&](const std::byte* at, std::size_t count, std::size_t done) {
    check(cudaMemcpyAsync(to + done, at, count, cudaMemcpyHostToDevice, stream), "moving a state back");
  });
}

void MemoryBlock::write(std::ostream& out, Staging& staging) const {
  Place place;
  {
    const std::lock_guard lock(mutex_);
    place = place_;
  }
  if (place.ready != nullptr) check(cudaEventSynchronize(place.ready->get()), "saving a snapshot");
  if (place.host != nullptr) {
    place.host->visit(0, bytes(), [&](const std::byte* at, std::size_t count, std::size_t) {
      write_values(out, std::span<const std::byte>(at, count));
    });
  } else {
    staging.write(out, place.device->data(), bytes());
  }
}

Hold::Hold(BlockStore& store, std::shared_ptr<MemoryBlock> block) : store_(&store), block_(std::move(block)) {
  store.residency().hold(*block_);
}

Hold::~Hold() { release(); }

Hold& Hold::operator=(Hold&& other) noexcept {
  if (this == &other) return *this;
  release();
  store_ = other.store_;
  block_ = std::move(other.block_);
  return *this;
}

void Hold::release() {
  if (block_ != nullptr) store_->residency().release(*block_);
}

BlockStore::BlockStore(const SnapshotMemory& budget, std::size_t piece, cudaStream_t stream)
    : residency_(budget.device),
      pinned_(piece, slab_bytes, budget.host, {.pin = pin, .unpin = unpin}),
      stream_(stream),
      out_(make_stream()),
      reached_(make_event()) {}

BlockStore::~BlockStore() {
  cudaStreamSynchronize(stream_);
  cudaStreamSynchronize(out_.get());
}

std::shared_ptr<PooledMemory> BlockStore::allocate(std::size_t bytes) {
  for (;;) {
    try {
      return std::make_shared<PooledMemory>(bytes, stream_);
    } catch (const OutOfMemory&) {
      const bool moved = residency_.make_room(bytes);
      if (!moved && (residency_.idle_bytes() == 0 || !pinned_.wait_for_more())) throw;
    }
    check(cudaStreamSynchronize(out_.get()), "making room");
  }
}

}  // namespace calla::cuda
