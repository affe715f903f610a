#include "metal/page_pool.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace calla::metal {

using calla_kernels::kv_slabs;

Page::Page(PagePool& pool, std::uint32_t id) : pool_(&pool), id_(id) { pool.holders_[id] = this; }
Page::Page(std::vector<std::byte> moved_out) : moved_out_(std::move(moved_out)) {}
Page::~Page() {
  if (pool_ != nullptr) pool_->give_back(*this);
}

std::span<const std::byte> Page::bytes() const {
  return pool_ != nullptr ? pool_->bytes_of(id_) : std::span<const std::byte>(moved_out_);
}

PageUse::PageUse(std::shared_ptr<Page> page) : page_(std::move(page)) { ++page_->users_; }
PageUse::~PageUse() {
  if (page_ != nullptr) --page_->users_;
}
PageUse& PageUse::operator=(PageUse&& other) noexcept {
  std::swap(page_, other.page_);
  return *this;
}

PagePool::PagePool(Device& device, std::size_t page_bytes, std::size_t capacity)
    : device_(device),
      page_bytes_(page_bytes),
      capacity_(capacity),
      pages_per_slab_(static_cast<std::uint32_t>((capacity + kv_slabs - 1) / kv_slabs)),
      holders_(capacity, nullptr) {
  const std::size_t slab_bytes = pages_per_slab_ * page_bytes;
  if (slab_bytes > device.max_buffer()) {
    throw Error("--context and --slots",
                fmt::format("need {} buffers of {} bytes for keys and values, and this GPU takes {}",
                            static_cast<unsigned>(kv_slabs), slab_bytes, device.max_buffer()),
                "choose a smaller --context or fewer --slots");
  }
}

std::array<View, kv_slabs> PagePool::slabs() const {
  std::array<View, kv_slabs> views;
  // The first one is there whenever any page is.
  for (std::size_t i = 0; i < views.size(); ++i)
    views.at(i) = *(slabs_.at(i) != nullptr ? slabs_.at(i) : slabs_.front());
  return views;
}

std::span<std::byte> PagePool::bytes_of(std::uint32_t id) const {
  return slabs_.at(id / pages_per_slab_)->bytes().subspan((id % pages_per_slab_) * page_bytes_, page_bytes_);
}

std::uint32_t PagePool::take_id() {
  // A free id in a buffer that is there; else a page that no slot needs makes room; else the next buffer.
  const auto is_there = [&](std::size_t id) { return slabs_.at(id / pages_per_slab_) != nullptr; };
  std::size_t id = 0;
  while (id < capacity_ && holders_[id] != nullptr) ++id;
  if (id == capacity_) {
    const auto idle =
        std::find_if(holders_.begin(), holders_.end(), [](const Page* page) { return page->users_ == 0; });
    assert(idle != holders_.end());
    id = static_cast<std::size_t>(idle - holders_.begin());
    Page& page = **idle;
    const std::lock_guard lock(page.moving_);
    const auto bytes = bytes_of(page.id_);
    page.moved_out_.assign(bytes.begin(), bytes.end());
    page.pool_ = nullptr;
    holders_[id] = nullptr;
  }
  if (!is_there(id)) {
    const std::size_t slab = id / pages_per_slab_;
    const std::size_t pages = std::min<std::size_t>(pages_per_slab_, capacity_ - slab * pages_per_slab_);
    slabs_.at(slab) = device_.allocate(pages * page_bytes_, Hazards::tracked);
  }
  return static_cast<std::uint32_t>(id);
}

void PagePool::give_back(Page& page) { holders_[page.id_] = nullptr; }

PageUse PagePool::create() {
  PageUse use(std::make_shared<Page>(*this, take_id()));
  // Attention multiplies what lies behind the newest position by zero: it must be a number.
  const auto zeros = bytes(use);
  std::memset(zeros.data(), 0, zeros.size());
  return use;
}

PageUse PagePool::copy(std::span<const std::byte> from) {
  PageUse use(std::make_shared<Page>(*this, take_id()));
  std::copy(from.begin(), from.end(), bytes(use).begin());
  return use;
}

PageUse PagePool::use(const std::shared_ptr<Page>& page) {
  PageUse use(page);
  if (page->pool_ == nullptr) {
    const std::uint32_t id = take_id();
    const std::lock_guard lock(page->moving_);
    page->id_ = id;
    page->pool_ = this;
    holders_[page->id_] = page.get();
    std::copy(page->moved_out_.begin(), page->moved_out_.end(), bytes_of(page->id_).begin());
    page->moved_out_ = {};
  }
  return use;
}

}  // namespace calla::metal
