#include "server/cors.h"

#include <algorithm>

namespace calla::server {

Headers cors_headers(const HttpRequest& request, const std::vector<std::string>& allowed) {
  const std::string_view origin = request.header("origin");
  if (origin.empty() || allowed.empty()) return {};
  const auto has = [&](std::string_view name) {
    return std::find(allowed.begin(), allowed.end(), name) != allowed.end();
  };
  const bool all = has("*");
  if (!all && !has(origin)) return {{"Vary", "Origin"}};
  Headers headers{{"Access-Control-Allow-Origin", all ? "*" : std::string(origin)},
                  {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"}};
  if (!all) headers.emplace_back("Vary", "Origin");
  if (request.method == "OPTIONS") {
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    std::string names = "Authorization, Content-Type, X-Api-Key";
    // SDKs add headers of their own (x-stainless-...).
    const std::string_view asked = request.header("access-control-request-headers");
    if (!asked.empty()) names.append(", ").append(asked);
    headers.emplace_back("Access-Control-Allow-Headers", names);
    headers.emplace_back("Access-Control-Max-Age", "86400");
    if (request.header("access-control-request-private-network") == "true") {
      headers.emplace_back("Access-Control-Allow-Private-Network", "true");
    }
  }
  return headers;
}

}  // namespace calla::server
