#include <gtest/gtest.h>

#include "checkpoint/config.h"
#include "checkpoint/files.h"
#include "support/support.h"

namespace calla {
namespace {
using test::message_of;
using test::tells;

GenerationConfig parse(std::string_view text) { return parse_generation_config(parse_json(text, "g"), "g"); }
std::string fault_of(std::string_view text) {
  return message_of([&] { parse(text); });
}

TEST(GenerationConfig, ReadsTheDemo) {
  const GenerationConfig config = read_generation_config(test::demo_model());
  EXPECT_EQ(config.do_sample, true);
  EXPECT_EQ(config.temperature, 1.0F);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_EQ(config.top_p, 0.95F);
  EXPECT_EQ(config.min_p, std::nullopt);
  EXPECT_EQ(config.end_tokens, (std::vector<Token>{2422, 2420}));
}

TEST(GenerationConfig, ReadsEveryField) {
  const GenerationConfig config = parse(
      R"({"do_sample":false,"temperature":0,"top_k":0,"top_p":1,"min_p":0.05,"presence_penalty":1.5,)"
      R"("frequency_penalty":-2,"repetition_penalty":1.1,"eos_token_id":7,"transformers_version":"4.57.1"})");
  EXPECT_EQ(config.do_sample, false);
  EXPECT_EQ(config.temperature, 0.0F);
  EXPECT_EQ(config.top_k, 0);
  EXPECT_EQ(config.top_p, 1.0F);
  EXPECT_EQ(config.min_p, 0.05F);
  EXPECT_EQ(config.presence_penalty, 1.5F);
  EXPECT_EQ(config.frequency_penalty, -2.0F);
  EXPECT_EQ(config.repetition_penalty, 1.1F);
  EXPECT_EQ(config.end_tokens, std::vector<Token>{7});
}

TEST(GenerationConfig, AMissingFileAndNullsAreAbsent) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(read_generation_config(folder.path()).temperature, std::nullopt);
  const GenerationConfig config = parse(R"({"temperature":null,"eos_token_id":null})");
  EXPECT_EQ(config.temperature, std::nullopt);
  EXPECT_TRUE(config.end_tokens.empty());
}

TEST(GenerationConfig, NamesEveryWrongField) {
  EXPECT_TRUE(
      tells(fault_of(R"({"temperature":"hot","top_k":-1,"top_p":1.5,"do_sample":1,"eos_token_id":[1,-1]})"),
            {"g: asks for sampling that does not exist:", "do_sample: 1, expected true or false",
             "temperature: \"hot\", expected a number from 0 to 100", "top_k: -1, expected a whole number",
             "top_p: 1.5, expected a number from 0 to 1", "eos_token_id: [1,-1], expected a token id",
             "mend the file, or remove it"}));
  EXPECT_TRUE(tells(fault_of(R"({"top_k":18446744073709551615})"), {"top_k: 18446744073709551615"}));
  EXPECT_TRUE(tells(fault_of(R"({"top_k":20.5})"), {"top_k: 20.5"}));
  EXPECT_TRUE(tells(fault_of(R"({"eos_token_id":4294967296})"), {"eos_token_id: 4294967296"}));
  EXPECT_TRUE(tells(fault_of("[]"), {"g: is no JSON object"}));
}

}  // namespace
}  // namespace calla
