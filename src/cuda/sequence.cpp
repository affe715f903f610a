#include "cuda/sequence.h"

#include <algorithm>
#include <istream>
#include <ostream>
#include <utility>

#include "model/snapshot_stream.h"

namespace calla::cuda {
namespace {

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

std::size_t floats(std::size_t bytes) { return bytes / sizeof(float); }

/// Pages that are never written again once a sequence has grown to some length.
int full_pages(int positions) { return positions / page_positions; }

/// Device memory through a staging buffer to a stream, or back.
class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) {}

  void write(std::ostream& out, const std::byte* from, std::size_t bytes) {
    pieces(bytes, [&](std::size_t at, std::size_t count) {
      check(cudaMemcpyAsync(buffer_.data(), from + at, count, cudaMemcpyDeviceToHost, stream_),
            "saving a snapshot");
      check(cudaStreamSynchronize(stream_), "saving a snapshot");
      write_values(out, std::span<const std::byte>(buffer_.data(), count));
    });
  }
  void read(std::istream& in, std::byte* to, std::size_t bytes) {
    pieces(bytes, [&](std::size_t at, std::size_t count) {
      read_values(in, std::span(buffer_.data(), count));
      check(cudaMemcpyAsync(to + at, buffer_.data(), count, cudaMemcpyHostToDevice, stream_),
            "loading a snapshot");
      check(cudaStreamSynchronize(stream_), "loading a snapshot");
    });
  }

 private:
  static constexpr std::size_t piece = std::size_t{4} << 20U;
  template <class Move>
  static void pieces(std::size_t bytes, Move move) {
    for (std::size_t at = 0; at < bytes; at += piece) move(at, std::min(piece, bytes - at));
  }

  cudaStream_t stream_;
  PinnedArray<std::byte> buffer_{piece};
};

}  // namespace

SequenceBytes sequence_bytes(const Shape& shape) {
  const std::size_t head = size(Shape::delta_head_dim);
  return {
      .page = sizeof(__nv_bfloat16) * 2 * size(shape.attention_layers()) * size(shape.kv_heads) *
              size(page_positions) * size(Shape::attention_head_dim),
      .recurrent = sizeof(float) * size(shape.delta_layers()) * size(shape.delta_value_heads) * head * head,
      .windows = sizeof(float) * size(shape.delta_layers()) * size(Shape::convolution_taps) *
                 size(shape.convolution_channels()),
      .logits = sizeof(float) * size(shape.vocabulary)};
}

Sequences::Sequences(const Shape& shape, int slots, int context, cudaStream_t stream)
    : bytes_(sequence_bytes(shape)),
      context_(context),
      max_pages_(page_count(context)),
      stream_(stream),
      pages_(size(slots)),
      recurrent_(size(slots) * floats(bytes_.recurrent)),
      windows_(size(slots) * floats(bytes_.windows)),
      logits_(size(slots) * floats(bytes_.logits)),
      page_pointers_(size(slots) * size(max_pages_)),
      page_tables_(size(slots)),
      recurrent_pointers_(size(slots)),
      window_pointers_(size(slots)) {
  std::vector<PageTable> tables;
  std::vector<float*> states;
  std::vector<float*> windows;
  for (int slot = 0; slot < slots; ++slot) {
    tables.push_back(pages(slot));
    states.push_back(recurrent_of(slot));
    windows.push_back(windows_of(slot));
  }
  upload(page_tables_.data(), static_cast<const void*>(tables.data()), tables.size() * sizeof(PageTable));
  upload(recurrent_pointers_.data(), static_cast<const void*>(states.data()), states.size() * sizeof(float*));
  upload(window_pointers_.data(), static_cast<const void*>(windows.data()), windows.size() * sizeof(float*));
  for (int slot = 0; slot < slots; ++slot) clear(slot);
}

PageTable Sequences::pages(int slot) const { return page_pointers_.data() + size(slot) * size(max_pages_); }
float* Sequences::recurrent_of(int slot) const {
  return recurrent_.data() + size(slot) * floats(bytes_.recurrent);
}
float* Sequences::windows_of(int slot) const { return windows_.data() + size(slot) * floats(bytes_.windows); }
float* Sequences::logits_of(int slot) const { return logits_.data() + size(slot) * floats(bytes_.logits); }

void Sequences::clear(int slot) {
  check(cudaMemsetAsync(recurrent_of(slot), 0, bytes_.recurrent, stream_), "emptying a slot");
  check(cudaMemsetAsync(windows_of(slot), 0, bytes_.windows, stream_), "emptying a slot");
  pages_[size(slot)].clear();
}

void Sequences::reserve(int slot, int positions) {
  std::vector<Page> pages = pages_[size(slot)];
  const std::size_t held = pages.size();
  while (pages.size() < size(page_count(positions))) pages.push_back(empty_page());
  if (pages.size() > held) set_pages(slot, std::move(pages), held);
}

void Sequences::set_pages(int slot, std::vector<Page> pages, std::size_t first_changed) {
  std::vector<const std::byte*> pointers;
  for (std::size_t i = first_changed; i < pages.size(); ++i) pointers.push_back(pages[i]->data());
  // From memory that is not pinned the copy has taken what it needs when the call returns.
  if (!pointers.empty()) {
    check(cudaMemcpyAsync(page_pointers_.data() + size(slot) * size(max_pages_) + first_changed,
                          static_cast<const void*>(pointers.data()), pointers.size() * sizeof(std::byte*),
                          cudaMemcpyHostToDevice, stream_),
          "adding pages");
  }
  pages_[size(slot)] = std::move(pages);
}

Page Sequences::empty_page() {
  auto page = std::make_shared<PooledMemory>(bytes_.page, stream_);
  // Attention multiplies what lies behind the newest position by zero: it must be a number.
  check(cudaMemsetAsync(page->data(), 0, bytes_.page, stream_), "clearing a page");
  return page;
}

Page Sequences::copy_of(const Page& page) {
  auto copy = std::make_shared<PooledMemory>(bytes_.page, stream_);
  check(cudaMemcpyAsync(copy->data(), page->data(), bytes_.page, cudaMemcpyDeviceToDevice, stream_),
        "copying a page");
  return copy;
}

std::unique_ptr<SequenceSnapshot> Sequences::snapshot(int slot, int position) {
  std::vector<Page> pages = pages_[size(slot)];
  pages.resize(size(page_count(position)));
  if (full_pages(position) < page_count(position)) pages.back() = copy_of(pages.back());
  const auto rest =
      std::make_shared<PooledMemory>(bytes_.recurrent + bytes_.windows + bytes_.logits, stream_);
  std::byte* at = rest->data();
  const auto copy = [&](const float* from, std::size_t bytes) {
    check(cudaMemcpyAsync(at, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying a state");
    at += bytes;
  };
  copy(recurrent_of(slot), bytes_.recurrent);
  copy(windows_of(slot), bytes_.windows);
  copy(logits_of(slot), bytes_.logits);
  Event copied = make_event();
  check(cudaEventRecord(copied.get(), stream_), "recording an event");
  return std::make_unique<SequenceSnapshot>(position, std::move(pages), rest, bytes_, std::move(copied));
}

void Sequences::restore(int slot, const SequenceSnapshot& snapshot) {
  std::vector<Page> pages = snapshot.pages();
  if (full_pages(snapshot.position()) < page_count(snapshot.position())) pages.back() = copy_of(pages.back());
  set_pages(slot, std::move(pages), 0);
  const std::byte* at = snapshot.rest();
  const auto copy = [&](float* to, std::size_t bytes) {
    check(cudaMemcpyAsync(to, at, bytes, cudaMemcpyDeviceToDevice, stream_), "restoring a state");
    at += bytes;
  };
  copy(recurrent_of(slot), bytes_.recurrent);
  copy(windows_of(slot), bytes_.windows);
  copy(logits_of(slot), bytes_.logits);
}

std::unique_ptr<SequenceSnapshot> Sequences::load(std::istream& in, const SequenceSnapshot* base) {
  const SavedSpan saved = read_span(in, base == nullptr ? 0 : base->position(), context_);
  std::vector<Page> pages;
  if (base != nullptr) {
    const auto shared = base->pages().begin();
    pages.assign(shared, shared + full_pages(saved.from));
  }
  Staging staging(stream_);
  while (pages.size() < size(page_count(saved.position))) {
    const auto page = std::make_shared<PooledMemory>(bytes_.page, stream_);
    staging.read(in, page->data(), bytes_.page);
    pages.push_back(page);
  }
  const auto rest =
      std::make_shared<PooledMemory>(bytes_.recurrent + bytes_.windows + bytes_.logits, stream_);
  staging.read(in, rest->data(), rest->bytes());
  return std::make_unique<SequenceSnapshot>(saved.position, std::move(pages), rest, bytes_, make_event());
}

SequenceSnapshot::SequenceSnapshot(int position, std::vector<Page> pages, Page rest,
                                   const SequenceBytes& bytes, Event copied)
    : position_(position),
      pages_(std::move(pages)),
      rest_(std::move(rest)),
      bytes_(bytes),
      copied_(std::move(copied)) {}

std::vector<MemoryPiece> SequenceSnapshot::memory() const {
  std::vector<MemoryPiece> pieces{{rest_.get(), rest_->bytes()}};
  for (const Page& page : pages_) pieces.push_back({page.get(), page->bytes()});
  return pieces;
}

void SequenceSnapshot::save(std::ostream& out, int from) const {
  check(cudaEventSynchronize(copied_.get()), "saving a snapshot");
  write_span(out, {from, position_});
  const Stream stream = make_stream();
  Staging staging(stream.get());
  for (std::size_t i = size(full_pages(from)); i < pages_.size(); ++i)
    staging.write(out, pages_[i]->data(), bytes_.page);
  staging.write(out, rest_->data(), rest_->bytes());
}

}  // namespace calla::cuda
