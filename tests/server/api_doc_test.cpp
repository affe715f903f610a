// The examples of docs/api.md, executed against the demonstration model.
#include <cmath>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "api_server.h"
#include "cpu/backend.h"
#include "support/demo.h"

namespace calla {
namespace {

using namespace test;

/// A fenced block: what stands behind the fence, and its text.
struct Block {
  std::string kind;
  std::string text;
};

std::vector<Block> blocks_of(const std::string& document) {
  std::vector<Block> blocks;
  std::istringstream lines(document);
  std::string line;
  bool inside = false;
  while (std::getline(lines, line)) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.push_back({line.substr(3), ""});
    } else if (inside) {
      blocks.back().text += line + "\n";
    }
  }
  return blocks;
}

/// Where an answer differs from what the document shows of it: all members shown must be there. "…" at the
/// end of a string stands for anything, a time is any number, and figures of the arithmetic may differ a
/// little.
std::string difference(const Json& shown, const Json& actual, const std::string& where = "answer") {
  if (shown.is_object() && actual.is_object()) {
    for (const auto& [key, value] : shown.items()) {
      if (!actual.contains(key)) return where + "." + key + " is missing";
      if (key == "created") continue;
      if (std::string inner = difference(value, actual.at(key), where + "." + key); !inner.empty())
        return inner;
    }
    return {};
  }
  if (shown.is_array() && actual.is_array() && shown.size() == actual.size()) {
    for (std::size_t i = 0; i < shown.size(); ++i) {
      if (std::string inner = difference(shown[i], actual[i], fmt::format("{}[{}]", where, i));
          !inner.empty())
        return inner;
    }
    return {};
  }
  bool same = shown == actual;
  if (shown.is_number_float() && actual.is_number())
    same = std::abs(shown.get<double>() - actual.get<double>()) < 0.05;
  if (shown.is_string() && actual.is_string()) {
    constexpr std::string_view rest = "…";
    const std::string text = shown;
    if (text.ends_with(rest))
      same = actual.get<std::string>().starts_with(text.substr(0, text.size() - rest.size()));
  }
  return same ? std::string()
              : fmt::format("{} is {}, and the document shows {}", where, actual.dump(), shown.dump());
}

/// The lines of a stream that a document shows; a line "…" stands for any lines.
std::string stream_difference(const std::string& shown, const std::string& actual) {
  const std::vector<std::string> events = read_events(actual).data;
  std::istringstream lines(shown);
  std::string line;
  std::size_t next = 0;
  std::size_t behind_gap = 0;
  std::size_t total_shown = 0;
  std::vector<std::string> all;
  while (std::getline(lines, line)) all.push_back(line);
  for (const std::string& one : all) total_shown += one.starts_with("data: ") ? 1 : 0;
  for (const std::string& one : all) {
    if (one == "…") {
      next = events.size() - (total_shown - behind_gap);
      continue;
    }
    if (next >= events.size()) return "the stream ends before " + one;
    ++behind_gap;
    const std::string data = one.substr(std::string_view("data: ").size());
    const std::string& event = events[next++];
    if (data == "[DONE]" || event == "[DONE]") {
      if (data != event) return event + " in place of " + data;
    } else if (std::string inner = difference(Json::parse(data), Json::parse(event), "event");
               !inner.empty()) {
      return inner;
    }
  }
  return next == events.size() ? std::string() : "the stream has more events than shown";
}

TEST(ApiDocument, EveryExampleIsTrue) {
  ApiOptions options;
  options.slots = 4;
  options.model = "Calla-demo";
  ApiServer server(cpu::make_backend(demo, demo_weights(), options.slots, 4096, 1, {}), options);
  const std::vector<Block> blocks = blocks_of(read_file(source("docs/api.md")));
  int executed = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].kind != "http") continue;
    SCOPED_TRACE(blocks[i].text);
    ASSERT_LT(i + 1, blocks.size()) << "a request without an answer";
    const std::size_t space = blocks[i].text.find(' ');
    const std::size_t line = blocks[i].text.find('\n');
    const HttpAnswer answer =
        ask(server.port(), blocks[i].text.substr(0, space),
            blocks[i].text.substr(space + 1, line - space - 1), blocks[i].text.substr(line + 1));
    const Block& shown = blocks[i + 1];
    EXPECT_EQ(shown.kind == "json" ? difference(Json::parse(shown.text), answer.json())
                                   : stream_difference(shown.text, answer.body),
              "")
        << answer.body;
    ++executed;
  }
  EXPECT_GE(executed, 12);
}

}  // namespace
}  // namespace calla
