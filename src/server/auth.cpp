#include "server/auth.h"

namespace calla::server {
namespace {

std::string_view given_key(const HttpRequest& request) {
  constexpr std::string_view scheme = "bearer ";
  std::string_view value = request.header("authorization");
  const auto matches = [&] {
    if (value.size() < scheme.size()) return false;
    for (std::size_t i = 0; i < scheme.size(); ++i) {
      if ((value[i] | 0x20) != (scheme[i] | 0x20)) return false;
    }
    return true;
  };
  if (!matches()) return request.header("x-api-key");
  value.remove_prefix(scheme.size());
  while (value.starts_with(' ')) value.remove_prefix(1);
  return value;
}

}  // namespace

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(given[i] ^ expected);
  }
  return difference == 0;
}

bool is_authorized(const HttpRequest& request, const std::vector<std::string>& keys) {
  if (keys.empty()) return true;
  const std::string_view given = given_key(request);
  bool found = false;
  for (const std::string& key : keys) found = equal_in_constant_time(given, key) || found;
  return found && !given.empty();
}

}  // namespace calla::server
