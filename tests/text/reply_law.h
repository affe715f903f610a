// The law of the reply parser: the joined events do not depend on how the reply was cut. What its tests and
// its fuzzer share.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "text/reply_parser.h"

namespace calla::test {

/// Bytes that are fed at once, or may be cut further unless they are one control token.
struct ReplyPiece {
  std::string bytes;
  bool control = false;
};
using ReplyPieces = std::vector<ReplyPiece>;

struct ReplySetting {
  ToolSet tools;
  bool starts_in_reasoning = false;
  ReplyEnd end = ReplyEnd::stop;
};

/// The events with those that continue each other made one.
inline std::vector<ReplyEvent> joined(const std::vector<ReplyEvent>& events) {
  std::vector<ReplyEvent> result;
  for (const ReplyEvent& event : events) {
    const bool continues =
        !result.empty() && std::visit(
                               [&](const auto& next) {
                                 using Event = std::decay_t<decltype(next)>;
                                 auto* last = std::get_if<Event>(&result.back());
                                 if (last == nullptr) return false;
                                 if constexpr (std::is_same_v<Event, ToolCallArguments>) {
                                   if (last->index != next.index) return false;
                                   last->json += next.json;
                                   return true;
                                 } else if constexpr (std::is_same_v<Event, ReasoningDelta> ||
                                                      std::is_same_v<Event, ContentDelta>) {
                                   last->text += next.text;
                                   return true;
                                 } else {
                                   return false;
                                 }
                               },
                               event);
    if (!continues) result.push_back(event);
  }
  return result;
}

inline std::vector<ReplyEvent> parse_reply(const ReplySetting& setting, const ReplyPieces& pieces) {
  ReplyParser parser(setting.tools, setting.starts_in_reasoning);
  std::vector<ReplyEvent> events;
  for (const ReplyPiece& piece : pieces) parser.feed(piece.bytes, events, piece.control);
  parser.finish(setting.end, events);
  return joined(events);
}

/// Pieces as long as they may be: text that follows text is one.
inline ReplyPieces whole(const ReplyPieces& pieces) {
  ReplyPieces result;
  for (const ReplyPiece& piece : pieces) {
    if (!result.empty() && !piece.control && !result.back().control) {
      result.back().bytes += piece.bytes;
    } else {
      result.push_back(piece);
    }
  }
  return result;
}

/// The pieces cut at offsets of the whole reply, which ascend; cuts within a control token are left out.
inline ReplyPieces cut(const ReplyPieces& pieces, const std::vector<std::size_t>& offsets) {
  ReplyPieces result;
  std::size_t begin = 0;
  auto offset = offsets.begin();
  for (const ReplyPiece& piece : pieces) {
    const std::size_t end = begin + piece.bytes.size();
    std::size_t at = begin;
    for (; offset != offsets.end() && *offset < end; ++offset) {
      if (piece.control || *offset <= at) continue;
      result.push_back({piece.bytes.substr(at - begin, *offset - at), false});
      at = *offset;
    }
    result.push_back({piece.bytes.substr(at - begin), piece.control});
    begin = end;
  }
  return result;
}

inline ReplyPieces byte_by_byte(const ReplyPieces& pieces) {
  ReplyPieces result;
  for (const ReplyPiece& piece : pieces) {
    if (piece.control) {
      result.push_back(piece);
    } else {
      for (const char byte : piece.bytes) result.push_back({std::string(1, byte), false});
    }
  }
  return result;
}

inline std::string text_of(const ReplyPieces& pieces) {
  std::string text;
  for (const ReplyPiece& piece : pieces) text += piece.bytes;
  return text;
}

/// Whether every call begins, goes on and ends in order, the arguments of an ended one are a JSON object, and
/// only a last one is cut.
inline bool calls_are_whole(const std::vector<ReplyEvent>& events) {
  int index = 0;
  bool open = false;
  bool was_cut = false;
  std::string arguments;
  for (const ReplyEvent& event : events) {
    if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
      if (open || was_cut || begin->index != index) return false;
      open = true;
      arguments.clear();
    } else if (const auto* piece = std::get_if<ToolCallArguments>(&event)) {
      if (!open || piece->index != index) return false;
      arguments += piece->json;
    } else if (const auto* end = std::get_if<ToolCallEnd>(&event)) {
      if (!open || end->index != index++) return false;
      if (!Json::parse(arguments, nullptr, false).is_object()) return false;
      open = false;
    } else if (const auto* cut_call = std::get_if<ToolCallCut>(&event)) {
      if (!open || cut_call->index != index++) return false;
      open = false;
      was_cut = true;
    } else if (open || was_cut) {
      return false;  // text within a call
    }
  }
  return !open;
}

inline std::string describe(const std::vector<ReplyEvent>& events) {
  std::string text;
  for (const ReplyEvent& event : events) {
    if (const auto* reasoning = std::get_if<ReasoningDelta>(&event))
      text += "reasoning " + json_string(reasoning->text);
    if (const auto* content = std::get_if<ContentDelta>(&event))
      text += "content " + json_string(content->text);
    if (const auto* begin = std::get_if<ToolCallBegin>(&event)) text += "begin " + json_string(begin->name);
    if (const auto* piece = std::get_if<ToolCallArguments>(&event)) text += "arguments " + piece->json;
    if (std::holds_alternative<ToolCallEnd>(event)) text += "end";
    if (const auto* cut_call = std::get_if<ToolCallCut>(&event)) text += "cut " + json_string(cut_call->text);
    text += '\n';
  }
  return text;
}

}  // namespace calla::test
