#include "server/metrics.h"

#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "api_server.h"

namespace calla::server {
namespace {

using namespace test;

/// The samples of an exposition, by name with labels.
std::map<std::string, double> samples(const std::string& text) {
  std::map<std::string, double> result;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with('#')) continue;
    const std::size_t space = line.rfind(' ');
    EXPECT_TRUE(result.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second)
        << "twice: " << line;
  }
  return result;
}

TEST(Histogram, CountsUpToEachBound) {
  Histogram histogram;
  histogram.observe(0.001);
  histogram.observe(0.02, 3);
  histogram.observe(1e9);
  const auto values = samples(histogram.text("h", "help"));
  EXPECT_EQ(values.at("h_bucket{le=\"0.001\"}"), 1) << "a bound belongs to its bucket";
  EXPECT_EQ(values.at("h_bucket{le=\"0.01\"}"), 1);
  EXPECT_EQ(values.at("h_bucket{le=\"0.025\"}"), 4);
  EXPECT_EQ(values.at("h_bucket{le=\"300\"}"), 4);
  EXPECT_EQ(values.at("h_bucket{le=\"+Inf\"}"), 5);
  EXPECT_EQ(values.at("h_count"), 5);
  EXPECT_NEAR(values.at("h_sum"), 1e9 + 0.061, 1);
}

TEST(MetricsEndpoint, CountsWhatWasDone) {
  ScriptedServer server;
  server.say("A thought.\n</think>\n\nYes.");
  Json body = chat_body("?");
  body["chat_template_kwargs"]["enable_thinking"] = true;
  const Json usage = server.chat(body).json().at("usage");
  server.chat(chat_body("?", {{"temperature", 9}}));
  ask(server.port(), "GET", "/nothing/here");
  const HttpAnswer answer = ask(server.port(), "GET", "/metrics");
  EXPECT_TRUE(answer.header("content-type").starts_with("text/plain; version=0.0.4"));
  const auto values = samples(answer.body);
  EXPECT_EQ(values.at("calla_requests_total{path=\"/v1/chat/completions\",status=\"200\"}"), 1);
  EXPECT_EQ(values.at("calla_requests_total{path=\"/v1/chat/completions\",status=\"400\"}"), 1);
  EXPECT_EQ(values.at("calla_requests_total{path=\"other\",status=\"404\"}"), 1)
      << "no path of a client's invention";
  EXPECT_EQ(values.at("calla_prompt_tokens_total"), usage.at("prompt_tokens"));
  EXPECT_EQ(values.at("calla_generated_tokens_total"), usage.at("completion_tokens"));
  EXPECT_EQ(values.at("calla_reasoning_tokens_total"),
            usage.at("completion_tokens_details").at("reasoning_tokens"));
  EXPECT_EQ(values.at("calla_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(values.at("calla_token_latency_seconds_count"), usage.at("completion_tokens"));
  EXPECT_EQ(values.at("calla_generations_total{end=\"stop\"}"), 1);
  EXPECT_EQ(values.at("calla_slots"), 2);
  EXPECT_EQ(values.at("calla_queue_length"), 0);
  EXPECT_EQ(values.at("calla_cache_misses_total{reason=\"off\"}") +
                values.at("calla_cache_misses_total{reason=\"too_short\"}"),
            1);
  EXPECT_EQ(values.at("calla_context_tokens"), 2048);
  EXPECT_GE(values.at("calla_connections"), 1);
}

}  // namespace
}  // namespace calla::server
