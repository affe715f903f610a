// What the name of a GPU's architecture says.
#pragma once
#include <charconv>
#include <string_view>

namespace calla::metal {

/// Whether a GPU of this name, "applegpu_g17s" for instance, has tensor units: from generation 17 on (M5), in
/// phones (the letter p) from 18 on. Metal has no question that says so.
inline bool architecture_has_tensor_units(std::string_view name) {
  constexpr std::string_view prefix = "applegpu_g";
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  int generation = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), generation);
  if (error != std::errc{}) return false;
  const bool phone = end != name.data() + name.size() && *end == 'p';
  return generation >= (phone ? 18 : 17);
}

}  // namespace calla::metal
