#include "metal/sequences.h"

#include <algorithm>
#include <array>
#include <istream>
#include <ostream>
#include <utility>

#include "model/snapshot_stream.h"

namespace calla::metal {
namespace {

using calla_kernels::Peak;
using calla_kernels::SlotState;

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

/// Pages that are never written again once a sequence has grown to some length.
int full_pages(int positions) { return positions / static_cast<int>(calla_kernels::page_positions); }

std::size_t state_layer_bytes(const Shape& shape) {
  return sizeof(float) * size(shape.delta_value_heads) * Shape::delta_head_dim * Shape::delta_head_dim;
}
std::size_t window_layer_bytes(const Shape& shape) {
  return sizeof(float) * calla_kernels::window_rows * size(shape.convolution_channels());
}

}  // namespace

SequenceBytes sequence_bytes(const Shape& shape) {
  constexpr std::size_t value = 2;  // bfloat16
  // A checkpoint cut before its first attention layer has pages all the same, of one layer.
  return {.page = value * 2 * size(std::max(1, shape.attention_layers()) * shape.kv_heads) *
                  calla_kernels::page_positions * Shape::attention_head_dim,
          .states = size(shape.delta_layers()) * state_layer_bytes(shape),
          .windows = size(shape.delta_layers()) * window_layer_bytes(shape),
          .logits = sizeof(float) * size(shape.vocabulary),
          .peaks = sizeof(Peak) * size(shape.vocabulary) / calla_kernels::head_rows};
}

Sequences::Sequences(Device& device, const Shape& shape, int slots, int context)
    : bytes_(sequence_bytes(shape)),
      context_(context),
      max_pages_(static_cast<std::uint32_t>(page_count(context))),
      state_layer_(state_layer_bytes(shape)),
      window_layer_(window_layer_bytes(shape)),
      pool_(device, bytes_.page, size(slots) * max_pages_),
      pages_(size(slots)),
      slot_states_(allocate_zeros(device, size(slots) * sizeof(SlotState))),
      page_table_(allocate_zeros(device, size(slots) * max_pages_ * sizeof(std::uint32_t))),
      states_(allocate_zeros(device, size(slots) * bytes_.states)),
      windows_(allocate_zeros(device, size(slots) * bytes_.windows)),
      logits_(allocate_zeros(device, size(slots) * bytes_.logits)),
      peaks_(allocate_zeros(device, size(slots) * bytes_.peaks)) {}

View Sequences::states(int delta_layer) const { return {*states_, size(delta_layer) * state_layer_}; }
View Sequences::windows(int delta_layer) const { return {*windows_, size(delta_layer) * window_layer_}; }

std::span<const float> Sequences::logits_of(int slot) const {
  const std::size_t count = bytes_.logits / sizeof(float);
  return logits_->as<float>().subspan(size(slot) * count, count);
}

std::array<std::span<std::byte>, 4> Sequences::parts(int slot) const {
  const auto part = [slot](const std::unique_ptr<Buffer>& buffer, std::size_t bytes) {
    return buffer->bytes().subspan(size(slot) * bytes, bytes);
  };
  return {part(states_, bytes_.states), part(windows_, bytes_.windows), part(logits_, bytes_.logits),
          part(peaks_, bytes_.peaks)};
}

void Sequences::clear(int slot) {
  const auto [states, windows, logits, peaks] = parts(slot);
  std::fill(states.begin(), states.end(), std::byte{0});
  std::fill(windows.begin(), windows.end(), std::byte{0});
  pages_[size(slot)].clear();
  place(slot, 0);
}

void Sequences::reserve(int slot, int positions) {
  std::vector<PageUse>& pages = pages_[size(slot)];
  const auto table = page_table_->as<std::uint32_t>().subspan(size(slot) * max_pages_, max_pages_);
  while (pages.size() < size(page_count(positions))) {
    pages.push_back(pool_.create());
    table[pages.size() - 1] = PagePool::id(pages.back());
  }
}

void Sequences::set_pages(int slot, std::vector<PageUse> pages) {
  const auto table = page_table_->as<std::uint32_t>().subspan(size(slot) * max_pages_, max_pages_);
  std::transform(pages.begin(), pages.end(), table.begin(), PagePool::id);
  pages_[size(slot)] = std::move(pages);
}

std::unique_ptr<SequenceSnapshot> Sequences::snapshot(int slot, int position) const {
  std::vector<std::shared_ptr<Page>> pages;
  for (int i = 0; i < page_count(position); ++i) {
    const PageUse& use = pages_[size(slot)][size(i)];
    if (i < full_pages(position)) {
      pages.push_back(use.page());
    } else {
      const auto bytes = PagePool::bytes(use);
      pages.push_back(std::make_shared<Page>(std::vector<std::byte>(bytes.begin(), bytes.end())));
    }
  }
  std::vector<std::byte> rest;
  for (const auto part : parts(slot)) rest.insert(rest.end(), part.begin(), part.end());
  return std::make_unique<SequenceSnapshot>(position, std::move(pages), std::move(rest), bytes_.page);
}

void Sequences::restore(int slot, const SequenceSnapshot& snapshot) {
  pages_[size(slot)].clear();
  std::vector<PageUse> pages;
  for (int i = 0; i < page_count(snapshot.position()); ++i) {
    const std::shared_ptr<Page>& page = snapshot.pages()[size(i)];
    if (i < full_pages(snapshot.position())) {
      pages.push_back(pool_.use(page));
    } else {
      page->read([&](std::span<const std::byte> bytes) { pages.push_back(pool_.copy(bytes)); });
    }
  }
  set_pages(slot, std::move(pages));
  auto from = snapshot.rest();
  for (const auto part : parts(slot)) {
    std::copy_n(from.begin(), part.size(), part.begin());
    from = from.subspan(part.size());
  }
  place(slot, snapshot.position());
}

SlotState& Sequences::state(int slot) const { return slot_states_->as<SlotState>()[size(slot)]; }

void Sequences::place(int slot, int position) const {
  state(slot).position = static_cast<unsigned>(position);
  state(slot).ended = 0;
}

void Sequences::begin_drawing(int slot) const {
  state(slot).ended = 0;
  state(slot).draws = 0;
}

void Sequences::give(int slot, Token token) const {
  state(slot).token = static_cast<unsigned>(token);
  state(slot).ended = 0;
}

std::unique_ptr<SequenceSnapshot> Sequences::load(std::istream& in, const SequenceSnapshot* base) const {
  const SavedSpan saved = read_span(in, base == nullptr ? 0 : base->position(), context_);
  std::vector<std::shared_ptr<Page>> pages;
  if (base != nullptr) {
    const auto shared = base->pages().begin();
    pages.assign(shared, shared + full_pages(saved.from));
  }
  while (pages.size() < size(page_count(saved.position))) {
    std::vector<std::byte> bytes(bytes_.page);
    read_values(in, std::span(bytes));
    pages.push_back(std::make_shared<Page>(std::move(bytes)));
  }
  std::vector<std::byte> rest(bytes_.states + bytes_.windows + bytes_.logits + bytes_.peaks);
  read_values(in, std::span(rest));
  return std::make_unique<SequenceSnapshot>(saved.position, std::move(pages), std::move(rest), bytes_.page);
}

SequenceSnapshot::SequenceSnapshot(int position, std::vector<std::shared_ptr<Page>> pages,
                                   std::vector<std::byte> rest, std::size_t page_bytes)
    : position_(position), pages_(std::move(pages)), rest_(std::move(rest)), page_bytes_(page_bytes) {}

std::vector<MemoryPiece> SequenceSnapshot::memory() const {
  std::vector<MemoryPiece> pieces{{this, rest_.size()}};
  for (const auto& page : pages_) pieces.push_back({page.get(), page_bytes_});
  return pieces;
}

void SequenceSnapshot::save(std::ostream& out, int from) const {
  write_span(out, {from, position_});
  for (std::size_t i = size(full_pages(from)); i < pages_.size(); ++i)
    pages_[i]->read([&](std::span<const std::byte> bytes) { write_values(out, bytes); });
  write_values(out, rest());
}

}  // namespace calla::metal
