// The commands with good input.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/json.h"
#include "program.h"
#include "support/support.h"

namespace calla {
namespace {

using test::run_calla;

Json parsed(const test::ProgramResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  return parse_json(result.out, "output");
}

TEST(Run, StreamsTheAnswerAndNothingElseIntoAPipe) {
  const auto result = run_calla({"run", "--greedy", "--no-think", "Calculate 4 / 2."});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "4 / 2 = 2\n");
  EXPECT_EQ(result.err, "") << "no bar, no figures where nobody looks";
}

TEST(Run, HidesTheReasoningUnlessAsked) {
  const auto hidden = run_calla({"run", "--greedy", "Calculate 18 - 14."});
  const auto shown = run_calla({"run", "--greedy", "--show-thinking", "Calculate 18 - 14."});
  EXPECT_TRUE(shown.out.ends_with("\n\n" + hidden.out)) << shown.out;
  EXPECT_NE(shown.out.find("I need to subtract"), std::string::npos) << shown.out;
  EXPECT_EQ(hidden.out.find("subtract"), std::string::npos) << hidden.out;
}

TEST(Run, ReadsThePromptFromStandardInput) {
  EXPECT_EQ(run_calla({"run", "--greedy", "--no-think"}, "Calculate 4 / 2.").out, "4 / 2 = 2\n");
}

TEST(Run, JsonHasEveryKey) {
  const Json result = parsed(run_calla({"run", "--greedy", "--json", "What is the capital of Thailand?"}));
  std::vector<std::string> keys;
  for (const auto& item : result.items()) keys.push_back(item.key());
  EXPECT_EQ(keys, (std::vector<std::string>{"prompt_ids", "ids", "text", "reasoning", "content", "tool_calls",
                                            "finish_reason", "usage", "timing"}));
  EXPECT_NE(result.at("content").get<std::string>().find("Bangkok"), std::string::npos) << result;
  EXPECT_EQ(result.at("finish_reason"), "stop");
  EXPECT_EQ(result.at("usage").at("prompt_tokens"), result.at("prompt_ids").size());
  EXPECT_EQ(result.at("usage").at("completion_tokens"), result.at("ids").size());
}

TEST(Run, EveryGoldenConversationGivesTheGoldenIds) {
  const auto folder = test::goldens();
  CALLA_REQUIRE(folder, "CALLA_GOLDENS");
  const Json golden = read_json_file(*folder / "demo/golden.json");
  const test::TemporaryFolder temporary;
  const std::string file = (temporary.path() / "messages.json").string();
  for (const Json& conversation : golden.at("generate")) {
    Json request{{"messages", conversation.at("messages")},
                 {"tools", conversation.at("tools")},
                 {"chat_template_kwargs", {{"enable_thinking", conversation.at("enable_thinking")}}}};
    test::write_file(file, request.dump());
    const Json result =
        parsed(run_calla({"run", "--greedy", "--json", "--max-tokens", "160", "--messages", file}));
    EXPECT_EQ(result.at("prompt_ids"), conversation.at("ids"));
    EXPECT_EQ(result.at("ids"), conversation.at("greedy_ids")) << conversation.at("messages");
    EXPECT_EQ(result.at("text"), conversation.at("greedy_text"));

    const Json rendered = parsed(run_calla({"render", "--json", "--messages", file}));
    EXPECT_EQ(rendered.at("prompt"), conversation.at("prompt"));
    EXPECT_EQ(rendered.at("ids"), conversation.at("ids"));
  }
}

TEST(Run, TakesToolsFromAFile) {
  const test::TemporaryFolder temporary;
  const std::string file = (temporary.path() / "tools.json").string();
  test::write_file(
      file, R"([{"type": "function", "function": {"name": "get_weather", "description": "Get the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])");
  const auto arguments = [&](bool json) {
    std::vector<std::string> all{"run",     "--greedy", "--no-think",
                                 "--tools", file,       "What is the weather in Madrid?"};
    if (json) all.emplace_back("--json");
    return all;
  };
  const Json result = parsed(run_calla(arguments(true)));
  ASSERT_EQ(result.at("tool_calls").size(), 1U) << result;
  const Json& function = result.at("tool_calls").at(0).at("function");
  EXPECT_EQ(function.at("name"), "get_weather");
  EXPECT_EQ(Json::parse(function.at("arguments").get<std::string>()).at("city"), "Madrid");
  EXPECT_EQ(result.at("finish_reason"), "tool_calls");
  EXPECT_EQ(result.at("content"), nullptr);

  const auto printed = run_calla(arguments(false));
  EXPECT_NE(printed.out.find("get_weather {"), std::string::npos) << printed.out;
}

TEST(Run, TheSameSeedGivesTheSameReply) {
  const auto reply = [](const char* seed) {
    return run_calla({"run", "--seed", seed, "--temperature", "1.3", "--max-tokens", "30", "--no-think",
                      "Tell me a story."})
        .out;
  };
  EXPECT_EQ(reply("7"), reply("7"));
  EXPECT_NE(reply("7"), reply("8"));
}

TEST(Tokenize, BothWays) {
  EXPECT_EQ(run_calla({"tokenize", "Hello, world!"}).out, "1357 11 293 500 631 0\n");
  EXPECT_EQ(run_calla({"tokenize"}, "Hello, world!").out, "1357 11 293 500 631 0\n");
  EXPECT_EQ(run_calla({"tokenize", "--json", "Hello, world!"}).out, "{\"ids\":[1357,11,293,500,631,0]}\n");
  EXPECT_EQ(run_calla({"detokenize", "1357", "11", "293", "500", "631", "0"}).out, "Hello, world!");
  EXPECT_EQ(run_calla({"detokenize"}, "[1357, 11, 293,500,631\n0]").out, "Hello, world!");
  EXPECT_EQ(run_calla({"tokenize", ""}).out, "\n");
}

TEST(Tokenize, ControlTokensOnlyWhenAsked) {
  EXPECT_EQ(run_calla({"tokenize", "--special", "<|im_end|>"}).out, "2422\n");
  const auto as_text = run_calla({"tokenize", "<|im_end|>"});
  EXPECT_EQ(as_text.out.find("2422"), std::string::npos);
  EXPECT_EQ(run_calla({"detokenize"}, as_text.out).out, "<|im_end|>");
}

TEST(Tokenize, NeedsOnlyTheTokenizersFiles) {
  const test::TemporaryFolder temporary;
  for (const char* name : {"tokenizer.json", "config.json"}) {
    std::filesystem::copy_file(test::demo_model() / name, temporary.path() / name);
  }
  EXPECT_EQ(run_calla({"tokenize", "--model", temporary.path().string(), "Hello"}).code, 0);
}

TEST(Render, PrintsThePromptAsItIs) {
  const test::TemporaryFolder temporary;
  const std::string file = (temporary.path() / "messages.json").string();
  test::write_file(
      file,
      R"({"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"enable_thinking": false}})");
  EXPECT_EQ(run_calla({"render", "--messages", file}).out,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

TEST(Info, DescribesCheckpointMachineAndPlan) {
  const auto result = run_calla({"info", "--context", "1024"});
  EXPECT_EQ(result.code, 0);
  for (const char* part : {"Calla demo", "6 Gated DeltaNet, 2 attention", "multi-token-prediction",
                           "available", "1024 tokens", "fits"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " in:\n" << result.out;
  }
}

TEST(Chat, HoldsAConversationOverAPipe) {
  const test::TemporaryFolder temporary;
  const std::string file = (temporary.path() / "saved.json").string();
  const auto result = run_calla({"chat", "--greedy", "--no-think"},
                                "Calculate 4 / 2.\n/save " + file +
                                    "\n/clear\n/system Answer briefly.\n/think on\n/nonsense\n" +
                                    "Calculate 18 - 14.\n/load " + file + "\n/exit\nnever read\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("4 / 2 = 2\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("I need to subtract"), std::string::npos)
      << "thinking was switched on: " << result.out;
  EXPECT_NE(result.err.find("/nonsense is not understood"), std::string::npos) << result.err;
  const Json saved = read_json_file(file);
  ASSERT_EQ(saved.at("messages").size(), 2U);
  EXPECT_EQ(saved.at("messages").at(1).at("content"), "4 / 2 = 2");
}

TEST(Chat, AMessageMayHaveSeveralLines) {
  const test::TemporaryFolder temporary;
  const std::string file = (temporary.path() / "saved.json").string();
  run_calla({"chat", "--greedy", "--no-think", "--max-tokens", "3"},
            "one \\\ntwo\n\"\"\"\nthree\n\n/four\n\"\"\"\n/save " + file + "\n");
  const Json saved = read_json_file(file);
  EXPECT_EQ(saved.at("messages").at(0).at("content"), "one \ntwo");
  EXPECT_EQ(saved.at("messages").at(2).at("content"), "three\n\n/four");
}

}  // namespace
}  // namespace calla
