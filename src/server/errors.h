// Faults as clients read them: {"error": {"message", "type", "param", "code"}}.
#pragma once
#include <optional>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "server/exchange.h"

namespace calla::server {

struct ErrorBody {
  std::string message;
  std::string type;
  std::optional<std::string> param = {};
  std::optional<std::string> code = {};
};

/// An answer other than success, thrown by whoever finds that it must be given.
class HttpError : public Error {
 public:
  HttpError(int status, ErrorBody body, Headers headers = {});
  int status() const { return status_; }
  const ErrorBody& body() const { return body_; }
  const Headers& headers() const { return headers_; }

 private:
  int status_;
  ErrorBody body_;
  Headers headers_;
};

/// The form of any exception: RequestError 400, QueueFull 429, DeviceLost 503, HttpError its own, others 500.
HttpError as_http_error(const std::exception& fault);

Json error_json(const ErrorBody& body);
HttpResponse error_response(int status, const ErrorBody& body, Headers headers = {});

HttpResponse json_response(const Json& body);
/// JSON text that is always UTF-8, whatever bytes the strings hold.
std::string dump(const Json& json);

/// The program is ending.
HttpError shutting_down();

}  // namespace calla::server
