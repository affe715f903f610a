// Who may ask.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/exchange.h"

namespace calla::server {

/// Compares in a time that depends on the length of `given` alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

/// Whether the request carries one of the keys, as "Authorization: Bearer KEY" or "x-api-key: KEY". Without
/// keys everyone may ask.
bool is_authorized(const HttpRequest& request, const std::vector<std::string>& keys);

}  // namespace calla::server
