#include "checkpoint/config.h"

#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/files.h"
#include "support/support.h"

namespace calla {
namespace {
using test::message_of;
using test::tells;

Json demo_config() { return read_json_file(test::demo_model() / "config.json"); }

/// The fault of the demo's configuration after an edit.
std::string fault_after(const std::function<void(Json&)>& edit) {
  Json config = demo_config();
  edit(config);
  return message_of([&] { parse_config(config, "config.json"); });
}
std::string fault_with(const std::string& pointer, const Json& value) {
  return fault_after([&](Json& config) { config[Json::json_pointer(pointer)] = value; });
}
std::string fault_without(const std::string& object, const char* key) {
  return fault_after([&](Json& config) { config[Json::json_pointer(object)].erase(key); });
}

TEST(Config, ReadsTheDemo) {
  const ModelConfig config = read_config(test::demo_model());
  EXPECT_EQ(config.shape, demo);
  EXPECT_EQ(config.context, 4096);
  EXPECT_EQ(config.end_tokens, std::vector<Token>{2422});
}

TEST(Config, ReadsTheRealModel) {
  const auto folder = test::qwen();
  CALLA_REQUIRE(folder, "CALLA_QWEN");
  const ModelConfig config = read_config(*folder / "qwen3.6-35b-a3b-4bit");
  EXPECT_EQ(config.shape, qwen36_35b);
  EXPECT_EQ(config.context, 262144);
  EXPECT_EQ(config.end_tokens, (std::vector<Token>{248046, 248044}));
}

TEST(Config, TellsTheRealModelUnquantised) {
  const auto folder = test::qwen();
  CALLA_REQUIRE(folder, "CALLA_QWEN");
  EXPECT_TRUE(tells(message_of([&] { read_config(*folder / "qwen3.6-35b-a3b"); }),
                    {"config.json: says that the checkpoint holds unquantised (BF16) weights",
                     "mlx-community/Qwen3.6-35B-A3B-4bit"}));
}

TEST(Config, TellsAnotherModel) {
  for (const char* type : {"qwen3", "qwen3_next", "qwen3_5", "llama"}) {
    EXPECT_TRUE(tells(
        fault_with("/model_type", type),
        {fmt::format("config.json: describes a \"{}\" model", type), "Calla runs Qwen3.6-35B-A3B only"}));
  }
  EXPECT_TRUE(tells(fault_with("/model_type", nullptr), {"model_type: missing, expected \"qwen3_5_moe\""}));
  EXPECT_TRUE(tells(message_of([] { parse_config(Json::array(), "c"); }), {"c: is no JSON object"}));
}

TEST(Config, TellsWeightsOfAnotherQuantisation) {
  const auto without_block = [](Json& config) { config.erase("quantization"); };
  EXPECT_TRUE(tells(fault_after(without_block), {"has a quantization_config but no quantization block"}));
  EXPECT_TRUE(tells(fault_after([&](Json& config) {
                      without_block(config);
                      config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
                    }),
                    {"holds weights quantised with \"gptq\"", "mlx-community"}));
  EXPECT_TRUE(
      tells(fault_with("/quantization/bits", 8), {"quantization.bits: 8, expected 4", "mlx-community"}));
  EXPECT_TRUE(tells(fault_with("/quantization/bits", 3), {"quantization.bits: 3, expected 4"}));
  EXPECT_TRUE(
      tells(fault_with("/quantization/group_size", 32), {"quantization.group_size: 32, expected 64"}));
  EXPECT_TRUE(tells(fault_with("/quantization/mode", "mxfp4"),
                    {"quantization.mode: \"mxfp4\", expected \"affine\""}));
  EXPECT_TRUE(tells(fault_with("/quantization/mode", "nvfp4"), {"quantization.mode: \"nvfp4\""}));
  EXPECT_TRUE(tells(fault_with("/quantization", 4), {"quantization: 4, expected an object"}));
  EXPECT_EQ(fault_without("/quantization", "mode"), "no error");
}

TEST(Config, ChecksEveryFieldOfTheArithmetic) {
  for (const auto& [key, wrong, expected] : std::initializer_list<std::tuple<const char*, Json, const char*>>{
           {"hidden_size", 4096, "512"},
           {"num_hidden_layers", 48, "a whole number from 1 to 8"},
           {"num_hidden_layers", 0, "a whole number from 1 to 8"},
           {"vocab_size", 151936, "2560"},
           {"num_attention_heads", 32, "8"},
           {"num_key_value_heads", 4, "1"},
           {"linear_num_key_heads", 32, "4"},
           {"linear_num_value_heads", 64, "8"},
           {"num_experts", 512, "32"},
           {"moe_intermediate_size", 1024, "64"},
           {"shared_expert_intermediate_size", 0, "128"},
           {"model_type", "qwen3_5_text", "\"qwen3_5_moe_text\""},
           {"head_dim", 128, "256"},
           {"linear_key_head_dim", 64, "128"},
           {"linear_value_head_dim", 256, "128"},
           {"linear_conv_kernel_dim", 3, "4"},
           {"num_experts_per_tok", 10, "8"},
           {"norm_topk_prob", false, "true"},
           {"hidden_act", "gelu", "\"silu\""},
           {"attention_bias", true, "false"},
           {"attn_output_gate", false, "true"},
           {"tie_word_embeddings", true, "false"},
           {"rms_norm_eps", 1e-5, "1e-06"},
           {"rope_theta", 10000, "10000000.0"},
           {"partial_rotary_factor", 0.5, "0.25"},
           {"rope_scaling", {{"type", "yarn"}}, "none"},
           {"full_attention_interval", 2, "4"},
           {"mtp_num_hidden_layers", 2, "a whole number from 0 to 1"},
           {"mtp_use_dedicated_embeddings", true, "false"},
           {"max_position_embeddings", 0, "a whole number from 1 to 1048576"},
           {"eos_token_id", 2560, "a token id below 2560"},
       }) {
    const std::string pointer = fmt::format("/text_config/{}", key);
    EXPECT_TRUE(tells(fault_with(pointer, wrong),
                      {"config.json: does not describe Calla demo:",
                       fmt::format("text_config.{}: {}, expected {}", key, wrong.dump(), expected)}));
    EXPECT_TRUE(tells(fault_with(pointer, "?"), {fmt::format("text_config.{}: \"?\", expected", key)}));
  }
  EXPECT_TRUE(tells(fault_with("/tie_word_embeddings", true), {"tie_word_embeddings: true, expected false"}));
  EXPECT_TRUE(tells(fault_with("/text_config", nullptr), {"text_config: missing, expected an object"}));
  EXPECT_TRUE(tells(fault_with("/text_config", 1), {"text_config: 1, expected an object"}));
}

TEST(Config, AcceptsTheFirstLayersAlone) {
  Json config = demo_config();
  config["text_config"]["num_hidden_layers"] = 4;
  EXPECT_TRUE(
      tells(message_of([&] { parse_config(config, "c"); }), {"text_config.layer_types", "a list of 4"}));

  Json& types = config["text_config"]["layer_types"];
  types.erase(types.begin() + 4, types.end());
  const std::string fault = message_of([&] { parse_config(config, "c"); });
  EXPECT_TRUE(tells(fault, {"quantization.language_model.model.layers.4.mlp.gate", "no override"}));

  for (const char* block : {"quantization", "quantization_config"}) {
    for (int layer = 4; layer < 8; ++layer) {
      for (const char* gate : {"gate", "shared_expert_gate"})
        config[block].erase(fmt::format("language_model.model.layers.{}.mlp.{}", layer, gate));
    }
  }
  Shape cut = demo;
  cut.layers = 4;
  EXPECT_EQ(parse_config(config, "c").shape, cut);
}

TEST(Config, KnowsWhichFieldsMustBeThere) {
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_experts", "head_dim",
                          "num_experts_per_tok", "hidden_act", "attn_output_gate", "tie_word_embeddings",
                          "rms_norm_eps", "max_position_embeddings", "eos_token_id"}) {
    EXPECT_TRUE(
        tells(fault_without("/text_config", key), {fmt::format("text_config.{}: missing, expected", key)}));
  }
  for (const char* key :
       {"model_type", "attention_bias", "full_attention_interval", "mtp_num_hidden_layers"}) {
    EXPECT_EQ(fault_without("/text_config", key), "no error") << key;
  }
}

TEST(Config, ReadsRopeFromEitherPlace) {
  for (const auto& [key, value] : std::initializer_list<std::pair<const char*, Json>>{
           {"rope_theta", 1e7}, {"partial_rotary_factor", 0.25}}) {
    EXPECT_TRUE(tells(fault_without("/text_config/rope_parameters", key),
                      {fmt::format("text_config.rope_parameters.{}: missing", key)}));
    EXPECT_EQ(fault_after([&, k = key, v = value](Json& config) {
                config["text_config"]["rope_parameters"].erase(k);
                config["text_config"][k] = v;
              }),
              "no error");
    EXPECT_TRUE(tells(fault_with(fmt::format("/text_config/rope_parameters/{}", key), 1),
                      {fmt::format("text_config.rope_parameters.{}: 1, expected {}", key, value.dump())}));
  }
  EXPECT_TRUE(tells(fault_with("/text_config/rope_parameters/rope_type", "yarn"),
                    {"text_config.rope_parameters.rope_type: \"yarn\", expected \"default\""}));
  EXPECT_EQ(fault_with("/text_config/rope_parameters/rope_theta", 10000000), "no error") << "a whole number";
  EXPECT_EQ(fault_with("/text_config/rms_norm_eps", 9.999999974752427e-07), "no error")
      << "the nearest float32";
}

TEST(Config, ChecksTheKindOfEveryLayer) {
  EXPECT_TRUE(tells(fault_with("/text_config/layer_types/3", "linear_attention"),
                    {"text_config.layer_types: [", "expected full_attention at layer 3"}));
  EXPECT_TRUE(tells(fault_with("/text_config/layer_types/4", 1), {"expected linear_attention at layer 4"}));
  EXPECT_TRUE(tells(fault_after([](Json& config) { config["text_config"]["layer_types"].erase(7); }),
                    {"expected a list of 8"}));
  EXPECT_EQ(fault_without("/text_config", "layer_types"), "no error");
  EXPECT_TRUE(tells(fault_after([](Json& config) {
                      config["text_config"].erase("layer_types");
                      config["text_config"].erase("full_attention_interval");
                    }),
                    {"text_config.full_attention_interval: missing, expected 4"}));
}

TEST(Config, HoldsTheOverridesAgainstTheTwoGatesOfEachLayer) {
  const std::string gate = "language_model.model.layers.2.mlp.gate";
  for (const char* block : {"quantization", "quantization_config"}) {
    const std::string in_block = fmt::format("/{}", block);
    const std::string at = fmt::format("/{}/{}", block, gate);
    const std::string name = fmt::format("{}.{}", block, gate);
    EXPECT_TRUE(
        tells(fault_without(in_block, gate.c_str()), {name, ": missing, expected an override to 8 bits"}));
    EXPECT_TRUE(tells(fault_with(at, {{"bits", 4}, {"group_size", 32}}),
                      {name, "gate.bits: 4, expected 8", "gate.group_size: 32, expected 64"}));
    EXPECT_TRUE(tells(fault_with(at, false), {name, "gate: false, expected an object"}));
    EXPECT_TRUE(tells(fault_with(fmt::format("{}/x", at), 1), {name, "gate.x: 1, expected nothing beside"}));
    EXPECT_EQ(fault_with(fmt::format("{}/mode", at), "affine"), "no error");
    EXPECT_TRUE(
        tells(fault_with(fmt::format("/{}/language_model.lm_head", block), {{"bits", 6}, {"group_size", 64}}),
              {fmt::format("{}.language_model.lm_head: ", block),
               R"({"bits":6,"group_size":64}, expected 4 bits as everywhere)"}));
  }
  EXPECT_TRUE(tells(fault_with("/quantization_config/bits", 8), {"quantization_config.bits: 8, expected 4"}));
  EXPECT_EQ(fault_with("/quantization_config", nullptr), "no error");
}

TEST(Config, TheMtpLayerHasBothOverridesOrNone) {
  EXPECT_TRUE(tells(fault_without("/quantization", "mtp.layers.0.mlp.gate"),
                    {"quantization.mtp.layers.0.mlp.gate: missing, expected an override to 8 bits"}));
  EXPECT_EQ(fault_after([](Json& config) {
              for (const char* block : {"quantization", "quantization_config"}) {
                config[block].erase("mtp.layers.0.mlp.gate");
                config[block].erase("mtp.layers.0.mlp.shared_expert_gate");
              }
            }),
            "no error");
}

TEST(Config, ReadsEndTokensFromTheTopFirst) {
  Json config = demo_config();
  config["eos_token_id"] = {7, 8, 7};
  EXPECT_EQ(parse_config(config, "c").end_tokens, (std::vector<Token>{7, 8}));
  config["eos_token_id"] = 9;
  EXPECT_EQ(parse_config(config, "c").end_tokens, std::vector<Token>{9});
  EXPECT_TRUE(tells(fault_with("/eos_token_id", -1), {"eos_token_id: -1, expected a token id below 2560"}));
}

TEST(Config, TellsEightFaultsAndCountsTheRest) {
  const std::string fault = fault_after([](Json& config) {
    for (const char* key : {"head_dim", "linear_key_head_dim", "linear_value_head_dim",
                            "linear_conv_kernel_dim", "num_experts_per_tok", "hidden_act", "attn_output_gate",
                            "tie_word_embeddings", "rms_norm_eps", "vocab_size"}) {
      config["text_config"][key] = "x";
    }
  });
  EXPECT_TRUE(tells(fault, {"text_config.attn_output_gate: \"x\"", "; and 2 more; Calla reads"}));
}

TEST(Config, NamesTheShapeItComesNearest) {
  EXPECT_TRUE(tells(fault_after([](Json& config) {
                      for (const char* key : {"hidden_size", "num_hidden_layers", "vocab_size",
                                              "num_attention_heads", "num_key_value_heads"}) {
                        config["text_config"][key] = 1;
                      }
                    }),
                    {"text_config.hidden_size: 1, expected 512"}));
  EXPECT_TRUE(
      tells(fault_with("/text_config", Json::object()),
            {"does not describe Qwen3.6-35B-A3B", "text_config.hidden_size: missing, expected 2048"}));
}

TEST(Config, NamesAFileThatIsNotJson) {
  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "config.json", "{\n\"a\" 1}");
  EXPECT_TRUE(tells(message_of([&] { read_config(folder.path()); }),
                    {"config.json: is not valid JSON at line 2, column 5"}));
  EXPECT_TRUE(tells(message_of([&] { read_config(folder.path() / "none"); }), {"none: no such directory"}));
}

}  // namespace
}  // namespace calla
