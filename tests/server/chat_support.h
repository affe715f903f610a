// Tools, a call of each, and streamed answers, for the tests of chat completions.
#pragma once
#include "api_server.h"

namespace calla::test {

inline const Json& weather_tool() {
  static const Json tool =
      Json::parse(R"({"type": "function", "function": {"name": "get_weather", "parameters":
      {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}})");
  return tool;
}
inline const Json& echo_tool() {
  static const Json tool = Json::parse(R"({"type": "function", "function": {"name": "echo", "parameters":
      {"type": "object", "properties": {"text": {"type": "string"}}}}})");
  return tool;
}
inline const std::string weather_call =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nMadrid\n</parameter>\n<parameter=days>\n3\n</"
    "parameter>\n"
    "</function>\n</tool_call>";
inline const std::string echo_call =
    "<tool_call>\n<function=echo>\n<parameter=text>\nhi\n</parameter>\n</function>\n</tool_call>";

inline Joined stream_of(const ScriptedServer& server, Json body) {
  body["stream"] = true;
  const HttpAnswer answer = server.chat(body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  return join_stream(answer.body);
}

}  // namespace calla::test
