#include <cstddef>
#include <utility>

#include "text/reply_parser.h"

namespace calla {

void ReplyCollector::add(const ReplyEvent& event) {
  if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) {
    reasoning_ += reasoning->text;
  } else if (const auto* content = std::get_if<ContentDelta>(&event)) {
    content_ += content->text;
  } else if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
    calls_.push_back({begin->name, {}, false});
  } else if (const auto* arguments = std::get_if<ToolCallArguments>(&event)) {
    calls_.at(static_cast<std::size_t>(arguments->index)).arguments += arguments->json;
  } else if (const auto* end = std::get_if<ToolCallEnd>(&event)) {
    calls_.at(static_cast<std::size_t>(end->index)).ended = true;
  } else if (const auto* cut = std::get_if<ToolCallCut>(&event)) {
    // The whitespace between them was dropped for the call's sake.
    if (!content_.empty() && content_.back() != '\n') content_ += '\n';
    content_ += cut->text;
  }
}

Reply ReplyCollector::reply() const {
  Reply reply;
  if (!reasoning_.empty()) reply.reasoning = reasoning_;
  if (!content_.empty()) reply.content = content_;
  for (const Call& call : calls_) {
    if (!call.ended) continue;
    ToolCall& added = reply.tool_calls.emplace_back();
    added.name = call.name;
    Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    if (arguments.is_object()) added.arguments = std::move(arguments);
  }
  return reply;
}

}  // namespace calla
