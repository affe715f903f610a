#include "server/server.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "server/auth.h"
#include "server/chat_completions.h"
#include "server/completions.h"
#include "server/cors.h"
#include "server/errors.h"
#include "server/host_check.h"
#include "server/models.h"
#include "server/page.h"
#include "server/tokenize.h"

namespace calla::server {

struct Server::Job {
  std::shared_ptr<Exchange> exchange;
  RequestRecord record;
};

struct Server::Route {
  enum class Needs {
    nothing,  // answered at once, by name
    model,    // answered at once, by the handler
    thread,   // as above, and takes time
  };
  std::string_view method;
  std::string_view path;  // ends in '/' where a name follows
  Needs needs = Needs::nothing;
  void (*handler)(Call& call) = nullptr;
  bool open = false;  // without a key
};

Server::Server(ServerOptions options, Log log)
    : options_(std::move(options)),
      log_(std::move(log)),
      http_(
          options_.limits, [this](std::shared_ptr<Exchange> exchange) { accept(std::move(exchange)); },
          [this](const RefusedRequest& refused) {
            log_(LogLevel::warning, fmt::format("peer={} status={} error={}", refused.peer, refused.status,
                                                quote(refused.reason)));
          }),
      workers_(std::make_unique<Workers>(options_.limits.connections)) {}

Server::~Server() { stop(); }

void Server::start() { http_.start(options_.host, options_.port); }

std::string Server::url() const {
  const bool six = options_.host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", six ? "[" + options_.host + "]" : options_.host, http_.port());
}

void Server::show_loading(std::uint64_t done, std::uint64_t total) {
  to_load_ = total;
  loaded_ = done;
}

LoadState Server::loading() const { return {.done = loaded_, .total = to_load_}; }

void Server::open(const ServedModel& model) {
  model_ = model;
  ready_ = true;
}

void Server::stop() {
  if (stopping_.exchange(true)) return;
  http_.stop_accepting();
  // Streams end by themselves within a moment; who does not read is not waited for.
  constexpr std::chrono::milliseconds patience{300};
  {
    std::unique_lock lock(mutex_);
    idle_.wait_for(lock, patience, [&] { return running_ == 0; });
  }
  http_.stop();
  workers_.reset();
}

const Server::Route& Server::find_route(const HttpRequest& request) const {
  using enum Route::Needs;
  static constexpr std::array routes{
      Route{"GET", "/", nothing, nullptr, true},
      Route{"GET", "/health", nothing, nullptr, true},
      Route{"GET", "/metrics", nothing},
      Route{"GET", "/v1/models", model, list_models},
      Route{"GET", "/v1/models/", model, describe_model},
      Route{"POST", "/v1/chat/completions", thread, chat_completions},
      Route{"POST", "/v1/completions", thread, completions},
      Route{"POST", "/tokenize", thread, tokenize},
      Route{"POST", "/detokenize", thread, detokenize},
  };
  const std::string_view path = request.path;
  const Route* found = nullptr;
  for (const Route& route : routes) {
    const bool takes_name = route.path.size() > 1 && route.path.ends_with('/');
    if (path == route.path || (takes_name && path.starts_with(route.path))) found = &route;
  }
  if (found == nullptr) {
    throw HttpError(404, {.message = fmt::format("there is no {}", quote(path)),
                          .type = "invalid_request_error",
                          .code = "not_found"});
  }
  const bool fits = request.method == found->method || (request.method == "HEAD" && found->method == "GET") ||
                    request.method == "OPTIONS";
  if (!fits) {
    throw HttpError(405,
                    {.message = fmt::format("{} is asked for with {}", path, found->method),
                     .type = "invalid_request_error",
                     .code = "method_not_allowed"},
                    {{"Allow", fmt::format("{}, OPTIONS", found->method)}});
  }
  return *found;
}

/// What has to hold whatever is asked for.
void Server::check(const HttpRequest& request) const {
  if (http_.is_loopback() && options_.api_keys.empty() && !is_local_host(request.header("host"))) {
    throw HttpError(403,
                    {.message = "Host: " + quote(request.header("host")) +
                                " is no name of this machine; to serve other names, start with --api-key",
                     .type = "invalid_request_error",
                     .code = "host_not_allowed"});
  }
  if (request.method != "POST") return;
  const std::string_view type = request.header("content-type");
  const std::string_view plain = type.substr(0, std::min(type.find_first_of("; "), type.size()));
  constexpr std::string_view json = "application/json";
  const bool is_json = std::equal(plain.begin(), plain.end(), json.begin(), json.end(), [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b;
  });
  if (!is_json) {
    throw HttpError(415, {.message = "the Content-Type must be application/json",
                          .type = "invalid_request_error",
                          .code = "unsupported_media_type"});
  }
}

void Server::accept(std::shared_ptr<Exchange> exchange) {
  const auto job = std::make_shared<Job>();
  job->exchange = std::move(exchange);
  const HttpRequest& request = job->exchange->request();
  RequestRecord& record = job->record;
  record.id = fresh_request_id();
  record.peer = request.peer;
  record.method = request.method.substr(0, 16);  // which may be the client's invention
  record.path = request.path;
  job->exchange->add_header("X-Request-Id", record.id);
  for (auto& [name, value] : cors_headers(request, options_.cors_origins)) {
    job->exchange->add_header(std::move(name), std::move(value));
  }
  const Route* for_worker = nullptr;
  answer(*job, [&] {
    const Route& route = find_route(request);
    record.route = route.path;
    check(request);
    if (request.method == "OPTIONS") {
      record.status = 204;
      return job->exchange->answer(
          {.status = 204, .headers = {{"Allow", fmt::format("{}, OPTIONS", route.method)}}});
    }
    if (!route.open && !is_authorized(request, options_.api_keys)) {
      throw HttpError(401,
                      {.message = "a key is needed, as Authorization: Bearer KEY or x-api-key: KEY",
                       .type = "authentication_error",
                       .code = "invalid_api_key"},
                      {{"WWW-Authenticate", "Bearer"}});
    }
    if (route.needs == Route::Needs::thread && model() != nullptr) {
      for_worker = &route;
    } else {
      serve(route, *job);
    }
  });
  if (for_worker == nullptr) return finish(*job);
  {
    const std::lock_guard lock(mutex_);
    ++running_;
  }
  workers_->run([this, job, for_worker] {
    answer(*job, [&] { serve(*for_worker, *job); });
    finish(*job);
    job->exchange.reset();
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) idle_.notify_all();
  });
}

void Server::serve(const Route& route, Job& job) {
  if (route.path == "/") return job.exchange->answer(page());
  if (route.path == "/health") {
    HttpResponse response = health(model(), loading());
    job.record.status = response.status;
    return job.exchange->answer(std::move(response));
  }
  if (route.path == "/metrics") {
    const Engine* engine = model() != nullptr ? &model()->chat->engine() : nullptr;
    return job.exchange->answer({.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
                                 .body = metrics_.text(engine, http_.connections())});
  }
  if (model() == nullptr) {
    throw HttpError(503,
                    {.message = "the model is being loaded; GET /health tells how far it is",
                     .type = "server_error",
                     .code = "model_loading"},
                    {{"Retry-After", "2"}});
  }
  if (stopping_) throw shutting_down();
  Call call{.exchange = *job.exchange,
            .model = *model(),
            .record = job.record,
            .stopping = stopping_,
            .keep_alive = options_.keep_alive,
            .keep_text = options_.log_text};
  if (options_.log_text) job.record.body = job.exchange->request().body;
  route.handler(call);
}

/// Runs a handler; what it throws becomes the answer.
void Server::answer(Job& job, const std::function<void()>& handler) {
  RequestRecord& record = job.record;
  try {
    handler();
    if (record.status == 0 && job.exchange->begun()) record.status = 200;
  } catch (const std::exception& exception) {
    const HttpError fault = as_http_error(exception);
    record.status = fault.status();
    record.fault = fault.body().message;
    // In the middle of a stream nothing can be said; dropping the exchange closes it.
    if (!job.exchange->begun())
      job.exchange->answer(error_response(fault.status(), fault.body(), fault.headers()));
  }
}

void Server::finish(Job& job) {
  const RequestRecord& record = job.record;
  metrics_.count(record);
  // These are asked for all the time.
  const bool routine = record.fault.empty() && (record.route == "/health" || record.route == "/metrics");
  if (!routine) log_(record.status >= 500 ? LogLevel::warning : LogLevel::info, log_line(record));
}

}  // namespace calla::server
