#include "server/health.h"

#include <cmath>
#include <optional>
#include <string>

#include "server/errors.h"

namespace calla::server {

HttpResponse health(const ServedModel* model, const LoadState& loading) {
  HttpResponse response;
  if (model == nullptr) {
    const double progress =
        loading.total == 0 ? 0 : static_cast<double>(loading.done) / static_cast<double>(loading.total);
    response = json_response({{"status", "loading"}, {"progress", std::round(progress * 1000) / 1000}});
    response.status = 503;
    response.headers.emplace_back("Retry-After", "1");
  } else if (const std::optional<std::string> lost = model->chat->engine().lost()) {
    response = json_response({{"status", "failed"}, {"error", *lost}});
    response.status = 503;
  } else {
    const EngineStats stats = model->chat->engine().stats();
    response = json_response({{"status", "ok"},
                              {"model", model->id},
                              {"slots", stats.slots},
                              {"slots_busy", stats.busy},
                              {"queue", stats.waiting}});
  }
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

}  // namespace calla::server
