#include "cuda/sequence.h"

#include <algorithm>
#include <istream>
#include <iterator>
#include <ostream>
#include <utility>

#include "model/snapshot_stream.h"

namespace calla::cuda {
namespace {

// Of host memory, for shapes whose pages are smaller than is good for copies.
constexpr std::size_t least_piece = std::size_t{1} << 20U;

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

std::size_t floats(std::size_t bytes) { return bytes / sizeof(float); }

/// Pages that are never written again once a sequence has grown to some length.
int full_pages(int positions) { return positions / page_positions; }

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

Sequences::Sequences(const Shape& shape, int slots, int context, const SnapshotMemory& snapshots,
                     cudaStream_t stream)
    : bytes_(sequence_bytes(shape)),
      context_(context),
      max_pages_(page_count(context)),
      stream_(stream),
      store_(snapshots, std::max(bytes_.page, least_piece), stream),
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
  std::vector<Hold>& pages = pages_[size(slot)];
  std::vector<Hold> added;
  while (pages.size() + added.size() < size(page_count(positions))) added.emplace_back(store_, empty_page());
  if (added.empty()) return;
  point_to(slot, added, pages.size());
  pages.insert(pages.end(), std::make_move_iterator(added.begin()), std::make_move_iterator(added.end()));
}

/// Lets the table of a slot's pages point to these, from the page with number `first` on.
void Sequences::point_to(int slot, std::span<const Hold> pages, std::size_t first) {
  std::vector<const std::byte*> pointers;
  for (const Hold& page : pages) pointers.push_back(page.block()->data());
  if (pointers.empty()) return;
  // From memory that is not pinned the copy has taken what it needs when the call returns.
  check(cudaMemcpyAsync(page_pointers_.data() + size(slot) * size(max_pages_) + first,
                        static_cast<const void*>(pointers.data()), pointers.size() * sizeof(std::byte*),
                        cudaMemcpyHostToDevice, stream_),
        "adding pages");
}

Page Sequences::empty_page() {
  Page page = store_.create(bytes_.page);
  // Attention multiplies what lies behind the newest position by zero: it must be a number.
  check(cudaMemsetAsync(page->data(), 0, bytes_.page, stream_), "clearing a page");
  return page;
}

template <class Visit>
void Sequences::visit_rest(int slot, Visit visit) const {
  visit(recurrent_of(slot), std::size_t{0}, bytes_.recurrent);
  visit(windows_of(slot), bytes_.recurrent, bytes_.windows);
  visit(logits_of(slot), bytes_.recurrent + bytes_.windows, bytes_.logits);
}

std::unique_ptr<SequenceSnapshot> Sequences::snapshot(int slot, int position) {
  const std::vector<Hold>& held = pages_[size(slot)];
  std::vector<Page> pages;
  for (std::size_t i = 0; i < size(full_pages(position)); ++i) pages.push_back(held[i].block());
  if (full_pages(position) < page_count(position)) {
    Page copy = store_.create(bytes_.page);
    held[pages.size()].block()->copy_to(copy->data(), 0, bytes_.page);
    pages.push_back(std::move(copy));
  }
  std::shared_ptr<MemoryBlock> rest = store_.create(rest_bytes());
  visit_rest(slot, [&](const float* from, std::size_t at, std::size_t bytes) {
    check(cudaMemcpyAsync(rest->data() + at, from, bytes, cudaMemcpyDeviceToDevice, stream_),
          "copying a state");
  });
  Event copied = make_event();
  check(cudaEventRecord(copied.get(), stream_), "recording an event");
  return std::make_unique<SequenceSnapshot>(position, std::move(pages), std::move(rest), std::move(copied));
}

void Sequences::restore(int slot, const SequenceSnapshot& snapshot) {
  // What is there already must not make room for what is not.
  for (const Page& page : snapshot.pages()) store_.residency().touch(*page);
  store_.residency().touch(snapshot.rest());
  std::vector<Hold> pages;
  for (std::size_t i = 0; i < size(full_pages(snapshot.position())); ++i)
    pages.emplace_back(store_, snapshot.pages()[i]);
  if (pages.size() < snapshot.pages().size()) {
    pages.emplace_back(store_, store_.create(bytes_.page));
    snapshot.pages().back()->copy_to(pages.back().block()->data(), 0, bytes_.page);
  }
  point_to(slot, pages, 0);
  pages_[size(slot)] = std::move(pages);
  visit_rest(slot, [&](float* to, std::size_t at, std::size_t bytes) {
    snapshot.rest().copy_to(reinterpret_cast<std::byte*>(to), at, bytes);
  });
}

std::unique_ptr<SequenceSnapshot> Sequences::load(std::istream& in, const SequenceSnapshot* base) {
  const SavedSpan saved = read_span(in, base == nullptr ? 0 : base->position(), context_);
  std::vector<Page> pages;
  if (base != nullptr) {
    const auto shared = base->pages().begin();
    pages.assign(shared, shared + full_pages(saved.from));
  }
  Staging staging(stream_);
  const auto read = [&](std::size_t bytes) {
    std::shared_ptr<MemoryBlock> block = store_.create(bytes);
    staging.read(in, block->data(), bytes);
    return block;
  };
  while (pages.size() < size(page_count(saved.position))) pages.push_back(read(bytes_.page));
  std::shared_ptr<MemoryBlock> rest = read(rest_bytes());
  return std::make_unique<SequenceSnapshot>(saved.position, std::move(pages), std::move(rest), make_event());
}

SequenceSnapshot::SequenceSnapshot(int position, std::vector<Page> pages, std::shared_ptr<MemoryBlock> rest,
                                   Event copied)
    : position_(position), pages_(std::move(pages)), rest_(std::move(rest)), copied_(std::move(copied)) {}

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
  for (std::size_t i = size(full_pages(from)); i < pages_.size(); ++i) pages_[i]->write(out, staging);
  rest_->write(out, staging);
}

}  // namespace calla::cuda
