#include "api_server.h"

namespace calla::test {

Joined join_stream(const std::string& stream, int choice) {
  Joined joined;
  for (const std::string& data : read_events(stream).data) {
    if (data == "[DONE]") {
      joined.done = true;
      continue;
    }
    joined.done = false;
    Json chunk = Json::parse(data);
    joined.chunks.push_back(chunk);
    if (chunk.contains("usage") && !chunk["usage"].is_null()) joined.usage = chunk["usage"];
    if (!chunk.contains("choices")) continue;
    for (const Json& one : chunk["choices"]) {
      if (one.at("index") != choice) continue;
      const Json& delta = one.at("delta");
      if (delta.contains("role")) joined.role = delta["role"];
      if (delta.contains("content")) joined.content += delta["content"].get<std::string>();
      if (delta.contains("reasoning_content"))
        joined.reasoning += delta["reasoning_content"].get<std::string>();
      if (delta.contains("tool_calls")) {
        for (const Json& piece : delta["tool_calls"]) {
          const auto index = piece.at("index").get<std::size_t>();
          if (piece.contains("id")) {
            joined.tool_calls[index] = {
                {"id", piece["id"]}, {"name", piece["function"]["name"]}, {"arguments", ""}};
          }
          Json& arguments = joined.tool_calls.at(index)["arguments"];
          arguments = arguments.get<std::string>() + piece["function"].value("arguments", "");
        }
      }
      if (!one.at("finish_reason").is_null()) joined.finish_reason = one["finish_reason"];
    }
  }
  return joined;
}

}  // namespace calla::test
