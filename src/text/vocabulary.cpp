#include "text/vocabulary.h"

#include <bit>
#include <cstring>

namespace calla {

std::uint64_t hash_bytes(std::string_view bytes) {
  // Multiplying carries every bit upwards only; the rotation brings the upper ones back down for the next
  // word.
  constexpr std::uint64_t odd = 0x9E3779B97F4A7C15;
  std::uint64_t hash = bytes.size() * odd;
  const auto mix = [&hash](std::uint64_t word) { hash = std::rotl((hash ^ word) * odd, 31); };
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= sizeof(std::uint64_t); left -= sizeof(std::uint64_t), at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    mix(word);
  }
  std::uint64_t rest = 0;
  for (std::size_t i = 0; i < left; ++i) rest = rest << 8 | static_cast<unsigned char>(at[i]);
  mix(rest);
  return (hash ^ hash >> 29) * odd;
}

Vocabulary::Vocabulary(std::size_t count) : slots_(std::bit_ceil(2 * count + 1)) {}

void Vocabulary::add(Token id, std::string_view bytes) {
  if (id >= size()) spans_.resize(static_cast<std::size_t>(id) + 1);
  const Span span{static_cast<std::uint32_t>(bytes_.size()), static_cast<std::uint32_t>(bytes.size())};
  spans_[static_cast<std::size_t>(id)] = span;
  bytes_.append(bytes);
  const std::uint64_t hash = hash_bytes(bytes);
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at].id != none) at = (at + 1) & mask;
  slots_[at] = {static_cast<std::uint32_t>(hash >> 32), id, span};
}

Token Vocabulary::find(std::string_view bytes, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t at = hash & mask; slots_[at].id != none; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.tag == tag && bytes_at(slot.span) == bytes) return slot.id;
  }
  return none;
}

std::string_view Vocabulary::bytes(Token id) const {
  if (id < 0 || id >= size()) return {};
  return bytes_at(spans_[static_cast<std::size_t>(id)]);
}

}  // namespace calla
