// What a new user may do wrong: each gives one line that says what to do, and never a crash.
#include <filesystem>

#include <gtest/gtest.h>

#include "base/json.h"
#include "program.h"
#include "support/support.h"

namespace calla {
namespace {

namespace fs = std::filesystem;
using test::run_calla;

class BadInput : public testing::Test {
 protected:
  /// A copy of the demonstration model that a test may damage.
  fs::path damaged_model() {
    fs::copy(test::demo_model(), folder_.path() / "model");
    return folder_.path() / "model";
  }
  fs::path file(const char* name, std::string_view content) {
    test::write_file(folder_.path() / name, content);
    return folder_.path() / name;
  }
  void change_config(const fs::path& model, const std::function<void(Json&)>& change) {
    Json config = read_json_file(model / "config.json");
    change(config);
    test::write_file(model / "config.json", config.dump());
  }

  static void expect_refused(const std::vector<std::string>& arguments,
                             std::initializer_list<const char*> parts, int code = 1,
                             std::string_view input = {}) {
    const auto result = run_calla(arguments, input);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_TRUE(result.err.starts_with("calla: ")) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << "not one line: " << result.err;
    for (const char* part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << part << " in: " << result.err;
    EXPECT_EQ(result.out, "");
  }
  void expect_model_refused(const fs::path& model, std::initializer_list<const char*> parts) {
    expect_refused({"run", "--model", model.string(), "Hi"}, parts);
  }

  test::TemporaryFolder folder_;
};

TEST_F(BadInput, UsageFaultsHaveTheirOwnCode) {
  expect_refused({}, {"--help"}, 2);
  expect_refused({"sing"}, {"sing", "--help"}, 2);
  expect_refused({"run", "--tempo", "1", "Hi"}, {"--tempo", "calla run --help"}, 2);
  expect_refused({"run", "--max-tokens", "-3", "Hi"}, {"--max-tokens"}, 2);
  expect_refused({"run", "--temperature", "warm", "Hi"}, {"--temperature"}, 2);
  expect_refused({"render"}, {"--messages"}, 2);
  expect_refused({"run", "Hi", "--messages", "x.json"}, {"--messages", "exclude"}, 2);
}

TEST_F(BadInput, NoSuchDirectory) { expect_model_refused("/nowhere/at/all", {"/nowhere/at/all", "no such"}); }

TEST_F(BadInput, ADirectoryWithoutConfig) { expect_model_refused(folder_.path(), {"config.json"}); }

TEST_F(BadInput, AGgufFile) { expect_model_refused(file("model.gguf", "GGUF...."), {"GGUF", "MLX 4-bit"}); }

TEST_F(BadInput, AnotherModel) {
  const fs::path model = damaged_model();
  change_config(model, [](Json& config) { config["model_type"] = "qwen3"; });
  expect_model_refused(model, {"qwen3", "Qwen3.6-35B-A3B"});
}

TEST_F(BadInput, UnquantisedWeights) {
  const fs::path model = damaged_model();
  change_config(model, [](Json& config) {
    config.erase("quantization");
    config.erase("quantization_config");
  });
  expect_model_refused(model, {"BF16", "4-bit"});
}

TEST_F(BadInput, AFieldThatChangesTheArithmetic) {
  const fs::path model = damaged_model();
  change_config(model, [](Json& config) { config["text_config"]["rms_norm_eps"] = 1e-5; });
  expect_model_refused(model, {"rms_norm_eps", "1e-05", "1e-06"});
}

TEST_F(BadInput, ATruncatedShard) {
  const fs::path model = damaged_model();
  fs::resize_file(model / "model.safetensors", 20'000'000);
  expect_model_refused(model, {"model.safetensors", "cut off"});
}

TEST_F(BadInput, AHeaderThatLies) {
  const fs::path model = damaged_model();
  std::string bytes = test::read_file(model / "model.safetensors");
  const std::size_t at = bytes.find("[2560, 64]");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 10, "[2560, 65]");
  test::write_file(model / "model.safetensors", bytes);
  expect_model_refused(model, {"model.safetensors", "lm_head.weight", "[2560, 65]"});
}

TEST_F(BadInput, AMissingShard) {
  const fs::path model = damaged_model();
  fs::rename(model / "model.safetensors", model / "model-00001-of-00002.safetensors");
  test::write_file(
      model / "model.safetensors.index.json",
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  expect_model_refused(model, {"model-00002-of-00002.safetensors"});
}

TEST_F(BadInput, NoWeightsAtAll) {
  const fs::path model = damaged_model();
  fs::remove(model / "model.safetensors");
  expect_model_refused(model, {"safetensors"});
}

TEST_F(BadInput, ATokenizerOfAnotherSize) {
  const fs::path model = damaged_model();
  Json tokenizer = read_json_file(model / "tokenizer.json");
  Json& added = tokenizer["added_tokens"];
  // Without its control tokens from <|im_end|> on.
  while (added.size() > 2) added.erase(added.size() - 1);
  test::write_file(model / "tokenizer.json", tokenizer.dump());
  expect_model_refused(model, {"tokenizer.json", "2422 tokens", "belongs to the checkpoint"});
}

TEST_F(BadInput, AMissingTokenizer) {
  const fs::path model = damaged_model();
  fs::remove(model / "tokenizer.json");
  expect_model_refused(model, {"tokenizer.json"});
}

TEST_F(BadInput, AContextBeyondTheModels) {
  expect_refused({"run", "--context", "5000", "Hi"}, {"--context", "5000", "4096"});
  expect_refused({"info", "--context", "5000"}, {"--context", "5000", "4096"});
}

TEST_F(BadInput, ABackendThatThisMachineCannotRun) {
  for (const char* backend : {"cuda", "metal"}) {
    if (run_calla({"info", "--backend", backend}).code == 0) continue;  // it can
    for (const char* command : {"info", "run"})
      expect_refused({command, "--backend", backend}, {"--backend", backend}, 1, "Hi");
  }
}

TEST_F(BadInput, APromptLongerThanTheContext) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += "word ";
  expect_refused({"run", "--context", "100", text}, {"prompt", "100", "--context"});
}

TEST_F(BadInput, InvalidUtf8) {
  expect_refused({"run"}, {"standard input", "UTF-8", "byte 2"}, 1, "ab\xFF");
  expect_refused({"run", "ab\xC3"}, {"PROMPT", "UTF-8"});
  expect_refused({"tokenize"}, {"standard input", "UTF-8"}, 1, "\xF0\x9F");
}

TEST_F(BadInput, AnEmptyPromptIsAnswered) { EXPECT_EQ(run_calla({"run", "--max-tokens", "1", ""}).code, 0); }

TEST_F(BadInput, FilesOfToolsAndMessages) {
  expect_refused({"run", "--tools", "/nowhere.json", "Hi"}, {"/nowhere.json", "cannot be read"});
  expect_refused({"run", "--tools", file("t.json", "{\"a\": ").string(), "Hi"},
                 {"t.json", "not valid JSON", "line 1"});
  expect_refused({"run", "--tools", file("u.json", "\"text\"").string(), "Hi"}, {"u.json", "tools"});
  expect_refused({"run", "--messages", file("m.json", "").string()}, {"m.json", "is empty"});
  expect_refused(
      {"run", "--messages", file("n.json", R"({"messages": [{"role": "pope", "content": "Hi"}]})").string()},
      {"n.json", "messages[0].role", "pope"});
  expect_refused({"run", "--messages", file("o.json", R"({"messages": []})").string()}, {"messages"});
  expect_refused(
      {"render", "--messages",
       file("p.json",
            R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})")
           .string()},
      {"p.json", "messages[0].content[0]", "text"});
}

TEST_F(BadInput, TokensThatAreNone) {
  expect_refused({"detokenize", "99999"}, {"99999", "2446"});
  expect_refused({"detokenize"}, {"standard input", "byte 3"}, 1, "12 twelve");
  expect_refused({"detokenize"}, {"standard input"}, 1, "123456789123456789");
}

TEST_F(BadInput, AFaultInAConversationDoesNotEndIt) {
  const auto result =
      run_calla({"chat", "--greedy", "--no-think"}, "/load /nowhere.json\nCalculate 4 / 2.\n");
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.err.find("/nowhere.json"), std::string::npos);
  EXPECT_NE(result.out.find("4 / 2 = 2"), std::string::npos);
}

TEST_F(BadInput, SavingIntoNowhereKeepsTheConversation) {
  const auto result =
      run_calla({"chat", "--greedy", "--no-think"}, "/save /nowhere/x.json\nCalculate 4 / 2.\n");
  EXPECT_NE(result.err.find("/nowhere/x.json"), std::string::npos);
  EXPECT_NE(result.out.find("4 / 2 = 2"), std::string::npos);
}

}  // namespace
}  // namespace calla
