// Figures for Prometheus.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "chat/chat.h"
#include "server/request_record.h"

namespace calla::server {

/// Counts of values by upper bounds, and their sum.
class Histogram {
 public:
  /// Seconds, a factor of about two apart: of tokens and of whole requests alike.
  static constexpr std::array<double, 16> bounds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                 0.5,   1,      2.5,   5,    10,    30,   60,  300};

  void observe(double value, std::uint64_t times = 1);
  /// The lines of the exposition format.
  std::string text(std::string_view name, std::string_view help) const;

 private:
  std::array<std::uint64_t, bounds.size() + 1> counts_{};
  double sum_ = 0;
};

/// What the server has done since it began. Any thread.
class Metrics {
 public:
  void count(const RequestRecord& record);

  /// The exposition format, with the engine's figures where there is an engine.
  std::string text(const Engine* engine, int connections) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> requests_;  // by path and status
  std::uint64_t reasoning_tokens_ = 0;
  Histogram first_token_;
  Histogram token_;
  Histogram queued_;
  Histogram prefill_;
  Histogram request_;
};

}  // namespace calla::server
