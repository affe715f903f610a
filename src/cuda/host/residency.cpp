#include "cuda/host/residency.h"

#include <cassert>

namespace calla::cuda {

namespace {
// Beginning a copy takes some microseconds.
constexpr int most_at_once = 32;
}  // namespace

Block::Block(Residency& residency, std::size_t bytes) : residency_(residency), bytes_(bytes) {
  residency_.add(*this);
}

Block::~Block() { residency_.remove(*this); }

void Residency::add(Block& block) {
  block.at_ = idle_.insert(idle_.end(), &block);
  idle_bytes_ += block.bytes_;
}

void Residency::remove(Block& block) noexcept {
  assert(block.holds_ == 0);
  if (block.on_device_) {
    end_idle(block);
  } else {
    moved_bytes_ -= block.bytes_;
  }
  other_.erase(block.at_);
}

void Residency::make_idle(Block& block) noexcept {
  idle_.splice(idle_.end(), other_, block.at_);
  idle_bytes_ += block.bytes_;
}

void Residency::end_idle(Block& block) noexcept {
  other_.splice(other_.end(), idle_, block.at_);
  idle_bytes_ -= block.bytes_;
}

void Residency::hold(Block& block) {
  if (block.holds_ == 0) {
    if (block.on_device_) {
      end_idle(block);
    } else {
      block.move_in();
      block.on_device_ = true;
      moved_bytes_ -= block.bytes_;
    }
  }
  ++block.holds_;
}

void Residency::release(Block& block) noexcept {
  assert(block.holds_ > 0);
  if (--block.holds_ == 0) make_idle(block);
}

void Residency::touch(Block& block) noexcept {
  if (block.on_device_ && block.holds_ == 0) idle_.splice(idle_.end(), idle_, block.at_);
}

bool Residency::move_out_oldest() {
  if (idle_.empty()) return false;
  Block& oldest = *idle_.front();
  if (!oldest.move_out()) return false;
  end_idle(oldest);
  oldest.on_device_ = false;
  moved_bytes_ += oldest.bytes_;
  return true;
}

void Residency::settle() {
  for (int moved = 0; moved < most_at_once && idle_bytes_ > budget_; ++moved) {
    if (!move_out_oldest()) return;
  }
}

bool Residency::make_room(std::size_t bytes) {
  const std::uint64_t before = idle_bytes_;
  while (before - idle_bytes_ < bytes && move_out_oldest()) {
  }
  return idle_bytes_ < before;
}

}  // namespace calla::cuda
