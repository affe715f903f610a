// Made-up weights, in memory and in a directory.
#include <filesystem>

#include <gtest/gtest.h>

#include "base/json.h"
#include "program.h"
#include "support/support.h"

namespace calla {
namespace {

using test::run_calla;

std::string ids_of(const std::vector<std::string>& model) {
  std::vector<std::string> arguments{"run", "--greedy", "--max-tokens", "8", "--json"};
  arguments.insert(arguments.end(), model.begin(), model.end());
  arguments.emplace_back("Hello");
  const auto result = run_calla(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.code == 0 ? parse_json(result.out, "output").at("ids").dump() : "";
}

TEST(Synth, WritesWhatSyntheticMakesInMemory) {
  const test::TemporaryFolder folder;
  const std::string directory = (folder.path() / "made").string();
  const auto written = run_calla({"synth", "--shape", "demo", "--layers", "4", "--out", directory});
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_NE(written.out.find("made-up weights"), std::string::npos) << written.out;

  const std::string ids = ids_of({"--model", directory});
  EXPECT_EQ(ids, ids_of({"--synthetic", "demo:4"}));
  EXPECT_EQ(ids, ids_of({"--synthetic", "demo:4", "--backend", "reference"}));
  EXPECT_NE(ids, ids_of({"--synthetic", "demo"}));
}

TEST(Synth, RefusesAFullDirectory) {
  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "mine", "precious");
  const auto result = run_calla({"synth", "--shape", "demo", "--out", folder.path().string()});
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.err.find("not an empty directory"), std::string::npos) << result.err;
}

TEST(Synthetic, InfoTellsTheShapeAndTheLayers) {
  const auto result = run_calla({"info", "--synthetic", "35b:2"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part : {"Synthetic weights", "Qwen3.6-35B-A3B",
                           "2 of 40 layers: 2 Gated DeltaNet, 0 attention", "2446 tokens (248320 rows)"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " in:\n" << result.out;
  }
}

TEST(Synthetic, TokenizesAsTheDemonstrationModelDoes) {
  EXPECT_EQ(run_calla({"tokenize", "--synthetic", "35b", "Hello there"}).out,
            run_calla({"tokenize", "Hello there"}).out);
}

TEST(Synthetic, WrongShapesAndBackends) {
  for (const auto& [arguments, part] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"info", "--synthetic", "7b"}, "give 35b or demo"},
           {{"info", "--synthetic", "35b:0"}, "give 1 to 40"},
           {{"info", "--synthetic", "demo:9"}, "give 1 to 8"},
           {{"info", "--synthetic", "demo:"}, "give 1 to 8"},
           {{"info", "--synthetic", "demo", "--model", "x"}, "excludes"},
           {{"info", "--backend", "tpu"}, "--backend"},
           {{"synth", "--shape", "demo", "--layers", "9", "--out", "x"}, "give 1 to 8"},
           {{"synth", "--shape", "demo"}, "--out"}}) {
    const auto result = run_calla(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " in: " << result.err;
  }
}

}  // namespace
}  // namespace calla
