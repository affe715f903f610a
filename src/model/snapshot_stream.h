// The raw values that a saved snapshot consists of, in this machine's own order of bytes.
#pragma once
#include <cstdint>
#include <istream>
#include <ostream>
#include <span>
#include <type_traits>

#include "base/error.h"

namespace calla {

template <class T>
void write_values(std::ostream& out, std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
}

/// Throws Error when the stream ends before.
template <class T>
void read_values(std::istream& in, std::span<T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = static_cast<std::streamsize>(values.size_bytes());
  in.read(reinterpret_cast<char*>(values.data()), bytes);
  if (in.gcount() != bytes) throw Error("the saved snapshot", "ends early");
}

/// The positions that a saved snapshot spans, and what must hold for them.
struct SavedSpan {
  std::int32_t from = 0;
  std::int32_t position = 0;
};

inline void write_span(std::ostream& out, SavedSpan span) {
  write_values(out, std::span<const SavedSpan>(&span, 1));
}

/// Throws Error where the span does not go on from `base_position` or leaves the context.
inline SavedSpan read_span(std::istream& in, int base_position, int context) {
  SavedSpan span;
  read_values(in, std::span<SavedSpan>(&span, 1));
  if (span.from != base_position || span.position < span.from || span.position > context)
    throw Error("the saved snapshot", "does not go on from where it should");
  return span;
}

}  // namespace calla
