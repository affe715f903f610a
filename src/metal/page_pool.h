// Pages of keys and values: page_positions positions of all attention layers. Kernels find them in a few
// large buffers, which come into being as they are needed; a page that only snapshots hold moves out of them
// when a slot needs the room.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "metal/device.h"
#include "metal/kernels/arguments.h"

namespace calla::metal {

class PagePool;

/// One page, shared by the sequences and snapshots that have its positions in common.
class Page {
 public:
  Page(PagePool& pool, std::uint32_t id);
  explicit Page(std::vector<std::byte> moved_out);
  ~Page();
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  Page(Page&&) = delete;
  Page& operator=(Page&&) = delete;

  /// Calls `read` with the page's bytes. On any thread, as long as no pass writes the page.
  template <class Read>
  void read(Read read) const {
    const std::lock_guard lock(moving_);
    read(bytes());
  }

 private:
  friend class PagePool;
  friend class PageUse;
  std::span<const std::byte> bytes() const;

  mutable std::mutex moving_;  // held while it moves, and while it is read
  PagePool* pool_ = nullptr;   // null: it is not in the pool's buffers
  std::uint32_t id_ = 0;
  std::vector<std::byte> moved_out_;
  int users_ = 0;  // slots that need it in the buffers
};

/// A slot's hold on a page: while it lasts the page has an id.
class PageUse {
 public:
  explicit PageUse(std::shared_ptr<Page> page);
  ~PageUse();
  PageUse(PageUse&& other) noexcept = default;
  PageUse& operator=(PageUse&& other) noexcept;
  PageUse(const PageUse&) = delete;
  PageUse& operator=(const PageUse&) = delete;

  const std::shared_ptr<Page>& page() const { return page_; }

 private:
  std::shared_ptr<Page> page_;
};

class PagePool {
 public:
  /// Room for `capacity` pages that slots hold at once, which are all that there ever are. Throws Error when
  /// that is more than the GPU's buffers hold.
  PagePool(Device& device, std::size_t page_bytes, std::size_t capacity);

  std::size_t page_bytes() const { return page_bytes_; }
  std::uint32_t pages_per_slab() const { return pages_per_slab_; }
  /// The buffers, each page id's at id / pages_per_slab(); one that is not there yet stands as another.
  std::array<View, calla_kernels::kv_slabs> slabs() const;

  /// A page of zeros, in the buffers. No pass may be under way that uses pages which nobody holds any more.
  PageUse create();
  /// A page with a copy of some bytes.
  PageUse copy(std::span<const std::byte> bytes);
  /// Brings a page into the buffers, when it is not there, and holds it.
  PageUse use(const std::shared_ptr<Page>& page);
  static std::uint32_t id(const PageUse& use) { return use.page()->id_; }
  static std::span<std::byte> bytes(const PageUse& use) {
    return use.page()->pool_->bytes_of(use.page()->id_);
  }

 private:
  friend class Page;
  std::uint32_t take_id();
  void give_back(Page& page);
  std::span<std::byte> bytes_of(std::uint32_t id) const;

  Device& device_;
  std::size_t page_bytes_;
  std::size_t capacity_;
  std::uint32_t pages_per_slab_;
  std::array<std::unique_ptr<Buffer>, calla_kernels::kv_slabs> slabs_;
  std::vector<Page*> holders_;  // [capacity], null where the id is free
};

}  // namespace calla::metal
