#include "server/errors.h"

#include <cmath>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "engine/engine.h"

namespace calla::server {

HttpError::HttpError(int status, ErrorBody body, Headers headers)
    : Error("", body.message), status_(status), body_(std::move(body)), headers_(std::move(headers)) {}

HttpError as_http_error(const std::exception& fault) {
  if (const auto* ready = dynamic_cast<const HttpError*>(&fault)) return *ready;
  if (const auto* request = dynamic_cast<const RequestError*>(&fault)) {
    ErrorBody body{.message = request->what(), .type = "invalid_request_error"};
    if (!request->param().empty()) body.param = request->param();
    if (!request->code().empty()) body.code = request->code();
    return {400, std::move(body)};
  }
  if (const auto* full = dynamic_cast<const QueueFull*>(&fault)) {
    return {429,
            {.message = full->what(), .type = "rate_limit_error", .code = "queue_full"},
            {{"Retry-After", fmt::format("{:.0f}", std::ceil(full->retry_after().count()))}}};
  }
  if (const auto* lost = dynamic_cast<const DeviceLost*>(&fault)) {
    return {503, {.message = lost->what(), .type = "server_error", .code = "device_lost"}};
  }
  if (dynamic_cast<const std::bad_alloc*>(&fault) != nullptr) {
    return {503,
            {.message = "memory: there is not enough for this request",
             .type = "server_error",
             .code = "no_memory"}};
  }
  return {500, {.message = fault.what(), .type = "server_error", .code = "internal_error"}};
}

Json error_json(const ErrorBody& body) {
  const auto or_null = [](const std::optional<std::string>& text) {
    return text ? Json(*text) : Json(nullptr);
  };
  return {{"error",
           {{"message", body.message},
            {"type", body.type},
            {"param", or_null(body.param)},
            {"code", or_null(body.code)}}}};
}

HttpResponse error_response(int status, const ErrorBody& body, Headers headers) {
  HttpResponse response = json_response(error_json(body));
  response.status = status;
  response.headers.insert(response.headers.end(), headers.begin(), headers.end());
  return response;
}

HttpResponse json_response(const Json& body) {
  return {.headers = {{"Content-Type", "application/json"}}, .body = dump(body) + "\n"};
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

HttpError shutting_down() {
  return {503,
          {.message = "the server is shutting down", .type = "server_error", .code = "shutting_down"},
          {{"Retry-After", "5"}}};
}

}  // namespace calla::server
