// The reply parser on any bytes: the first byte chooses the setting, the second how many cut points follow (a
// byte each, the distance from the one before), the rest is the reply. A think tag after the byte 0x01 comes
// as a control token.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "../tests/text/reply_law.h"

namespace {

using calla::Json;
using calla::ReplyEvent;
using namespace calla::test;

calla::ToolSet tools() {
  const Json parameters = Json::parse(R"({
    "$defs": {"N": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
    "properties": {"s": {"type": "string"}, "n": {"$ref": "#/$defs/N"}, "b": {"type": "boolean"}, "f": {"type": "number"},
                   "e": {"enum": ["a", 1, null]}, "o": {"type": "object"}, "u": {}}})");
  const std::vector<Json> declared{{{"name", "f"}, {"parameters", parameters}}, {{"name", "g"}}};
  return calla::ToolSet(declared);
}

ReplyPieces pieces_of(std::string_view reply) {
  ReplyPieces pieces(1);
  while (!reply.empty()) {
    std::size_t control = 0;
    if (reply.starts_with("\x01<think>")) control = 7;
    if (reply.starts_with("\x01</think>")) control = 8;
    if (control > 0) {
      pieces.push_back({std::string(reply.substr(1, control)), true});
      pieces.emplace_back();
      reply.remove_prefix(1 + control);
    } else {
      pieces.back().bytes += reply.front();
      reply.remove_prefix(1);
    }
  }
  return pieces;
}

void require(bool holds, const char* what, const std::vector<ReplyEvent>& events,
             const std::vector<ReplyEvent>& others) {
  if (holds) return;
  std::fprintf(stderr, "%s\n%sand\n%s", what, describe(events).c_str(), describe(others).c_str());
  std::abort();
}

}  // namespace

// The name is libFuzzer's. NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const calla::ToolSet declared = tools();
  std::string input;
  for (std::size_t i = 0; i < size; ++i) input += static_cast<char>(data[i]);
  if (input.size() < 2) return 0;
  const unsigned options = static_cast<unsigned char>(input[0]);
  const std::size_t cuts = std::min<std::size_t>(static_cast<unsigned char>(input[1]) % 16, input.size() - 2);
  std::vector<std::size_t> offsets;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < cuts; ++i) {
    offset += static_cast<unsigned char>(input[2 + i]);
    offsets.push_back(offset);
  }
  const ReplyPieces whole = pieces_of(std::string_view(input).substr(2 + cuts));
  const ReplySetting setting{(options & 4U) != 0 ? calla::ToolSet() : declared, (options & 1U) != 0,
                             (options & 2U) != 0 ? calla::ReplyEnd::length : calla::ReplyEnd::stop};

  const auto events = parse_reply(setting, whole);
  require(calls_are_whole(events), "a call is not whole", events, {});
  const auto cut_events = parse_reply(setting, cut(whole, offsets));
  require(cut_events == events, "cut differs", events, cut_events);
  const auto single_events = parse_reply(setting, byte_by_byte(whole));
  require(single_events == events, "byte by byte differs", events, single_events);

  calla::ReplyCollector collector;
  for (const ReplyEvent& event : events) collector.add(event);
  const std::size_t calls = collector.reply().tool_calls.size();
  std::size_t ended = 0;
  for (const ReplyEvent& event : events) ended += std::holds_alternative<calla::ToolCallEnd>(event) ? 1U : 0U;
  require(calls == ended, "the collected calls differ", events, {});
  return 0;
}
