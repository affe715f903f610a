// The API server: which endpoint answers, who may ask, and the life from the first connection to the last.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/call.h"
#include "server/health.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/workers.h"

namespace calla::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                        // 0: any that is free
  std::vector<std::string> api_keys;      // none: everyone may ask
  std::vector<std::string> cors_origins;  // web pages that may call; "*": all
  HttpLimits limits;
  Seconds keep_alive{15};
  bool log_text = false;  // log what is asked and answered, too
};

enum class LogLevel { info, warning };
/// One line; called on any thread.
using Log = std::function<void(LogLevel level, std::string_view line)>;

class Server {
 public:
  Server(ServerOptions options, Log log);
  /// stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  Server(Server&&) = delete;
  Server& operator=(Server&&) = delete;

  /// Takes the port and answers from then on: /health with the progress of loading, most other requests with
  /// 503. Throws Error when the port cannot be had.
  void start();
  /// "http://127.0.0.1:8080"
  std::string url() const;
  int port() const { return http_.port(); }
  /// Whether others than this machine can connect, and without a key.
  bool is_open_to_all() const { return !http_.is_loopback() && options_.api_keys.empty(); }

  void show_loading(std::uint64_t done, std::uint64_t total);
  /// The model is there: from now on everything is answered. Once.
  void open(const ServedModel& model);

  /// Ends what runs, telling the clients, and closes all connections: within a second.
  void stop();

 private:
  struct Job;
  struct Route;

  void accept(std::shared_ptr<Exchange> exchange);
  void check(const HttpRequest& request) const;
  const Route& find_route(const HttpRequest& request) const;
  void serve(const Route& route, Job& job);
  void answer(Job& job, const std::function<void()>& handler);
  void finish(Job& job);
  const ServedModel* model() const { return ready_ ? &model_ : nullptr; }
  LoadState loading() const;

  const ServerOptions options_;
  const Log log_;
  Metrics metrics_;
  ServedModel model_;  // written before ready_, and never again
  std::atomic<bool> ready_{false};
  std::atomic<std::uint64_t> loaded_{0};
  std::atomic<std::uint64_t> to_load_{0};
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;  // guards running_
  std::condition_variable idle_;
  int running_ = 0;  // jobs that workers have

  HttpServer http_;
  std::unique_ptr<Workers> workers_;  // ends before the sockets, whose exchanges its tasks hold
};

}  // namespace calla::server
