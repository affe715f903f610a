#include "server/host_check.h"

#include <algorithm>
#include <array>
#include <string>

namespace calla::server {

bool is_local_host(std::string_view host) {
  if (host.empty() || host.starts_with('[')) return true;
  std::string name(host.substr(0, host.rfind(':')));
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const bool is_address =
      std::all_of(name.begin(), name.end(), [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  if (is_address || name == "localhost") return true;
  constexpr std::array<std::string_view, 3> suffixes{".localhost", ".local", ".internal"};
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

}  // namespace calla::server
