// Which web pages of other origins may call.
#pragma once
#include <string>
#include <vector>

#include "server/exchange.h"

namespace calla::server {

/// The CORS headers of the answer to a request: none where its origin is not among `allowed`, of which "*"
/// means all.
Headers cors_headers(const HttpRequest& request, const std::vector<std::string>& allowed);

}  // namespace calla::server
