// The page as the build has embedded it.
#pragma once
#include <string_view>

namespace calla::server {

std::string_view page_html();
/// Nothing but the page's own script and styles, by their hashes, and requests to this server.
extern const std::string_view page_policy;

}  // namespace calla::server
