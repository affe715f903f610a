#include "server/page.h"

#include <string>

#include "server/page_data.h"

namespace calla::server {

HttpResponse page() {
  return {.headers = {{"Content-Type", "text/html; charset=utf-8"},
                      {"Content-Security-Policy", std::string(page_policy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Frame-Options", "DENY"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}},
          .body = std::string(page_html())};
}

}  // namespace calla::server
