#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/bench_beside.h"
#include "cli/bench_measure.h"
#include "cli/bench_plot.h"
#include "program.h"
#include "support/support.h"

namespace calla::cli {
namespace {

using test::run_calla;

// The numbers of other software that uses the same prompt and digest.
TEST(BenchPrompt, IsTheOneOthersMeasureWith) {
  const std::vector<Token> prompt = bench_prompt(4096, 0, 248320);
  EXPECT_EQ(std::vector<Token>(prompt.begin(), prompt.begin() + 6),
            (std::vector<Token>{0, 143281, 13666, 156947, 27332, 146037}));
  EXPECT_EQ(prompt[255], 148303);
  EXPECT_EQ(prompt[4095], 106575);
  EXPECT_EQ(token_digest(prompt), 0x507A8E1714A8C325U);
  EXPECT_EQ(bench_prompt(2, 3, 248320), (std::vector<Token>{156947, 27332})) << "shifted by three";
}

TEST(TokenDigest, IsFnvOverWholeIds) {
  const std::vector<Token> tokens{1, 2, 3};
  EXPECT_EQ(token_digest({}), 0xCBF29CE484222325U);
  EXPECT_EQ(token_digest(std::vector<Token>{0}), 0xAF63BD4C8601B7DFU);
  EXPECT_EQ(token_digest(tokens), 0xD0AA6218672CF5ABU);
  EXPECT_EQ(token_digest(std::span(tokens).subspan(1), token_digest(std::span(tokens).first(1))),
            token_digest(tokens));
}

TEST(RoundTicks, AreRoundAndReachTheLargest) {
  EXPECT_EQ(round_ticks(10.4), (std::vector<double>{0, 2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(round_ticks(156), (std::vector<double>{0, 50, 100, 150, 200}));
  EXPECT_EQ(round_ticks(5000), (std::vector<double>{0, 1000, 2000, 3000, 4000, 5000}));
  for (const double largest : {0.037, 1.0, 1.01, 7.3, 99.0, 5749.9}) {
    const std::vector<double> ticks = round_ticks(largest);
    EXPECT_GE(ticks.back(), largest * 0.999999);
    EXPECT_LT(ticks[ticks.size() - 2], largest);
    EXPECT_GE(ticks.size(), 4U) << largest;
    EXPECT_LE(ticks.size(), 8U) << largest;
  }
}

Json measured(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "--steps", "4", "--json", "-"});
  const auto result = run_calla(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return parse_json(result.out, "output");
}

TEST(Bench, JsonHasTheFiguresOfEachContext) {
  const Json report = measured({"--contexts", "32,16", "--rounds", "2"});
  EXPECT_GT(report.at("machine").at("read_bytes_per_second"), 1e9);
  EXPECT_GT(report.at("machine").at("product_peak"), 1e9);
  EXPECT_EQ(report.at("model").at("name"), "Calla demo, 8 layers");
  ASSERT_EQ(report.at("contexts").size(), 2U);
  int context = 16;
  for (const Json& row : report.at("contexts")) {
    EXPECT_EQ(row.at("context"), context) << "in ascending order";
    context *= 2;
    EXPECT_EQ(row.at("prefill").at("seconds").size(), 2U);
    EXPECT_GT(row.at("prefill").at("tokens_per_second"), 0);
    EXPECT_GT(row.at("decode").at("tokens_per_second"), 0);
    EXPECT_GT(row.at("decode").at("share_of_bound"), 0);
    EXPECT_TRUE(row.at("repeats"));
  }
  EXPECT_NE(report.at("contexts")[0].at("digest"), report.at("contexts")[1].at("digest"));
}

TEST(Bench, ABatchDecodesItsFirstSlotAmongOthers) {
  const Json one = measured({"--contexts", "16", "--rounds", "1"});
  const Json three = measured({"--contexts", "16", "--rounds", "1", "--batch", "3"});
  const Json& figures = three.at("contexts")[0].at("decode");
  EXPECT_DOUBLE_EQ(figures.at("tokens_per_second_all_slots").get<double>(),
                   3 * figures.at("tokens_per_second").get<double>());
  const auto bytes = [](const Json& report) {
    return report.at("contexts")[0].at("decode").at("bytes_per_step").at("total").get<double>();
  };
  EXPECT_GT(bytes(three), bytes(one));
  EXPECT_LT(bytes(three), 3 * bytes(one)) << "weights that all slots use are read once";
}

TEST(Bench, WritesTableCsvAndPlot) {
  const test::TemporaryFolder folder;
  const std::string csv = (folder.path() / "speed.csv").string();
  const std::string plot = (folder.path() / "speed.svg").string();
  const auto result = run_calla({"bench", "--steps", "2", "--rounds", "1", "--contexts", "8", "--synthetic",
                                 "demo:2", "--csv", csv, "--plot", plot});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "") << "no bar where nobody looks";
  for (const char* part : {"4-bit by 8-bit products", "Calla demo, 2 layers, synthetic", "context", "digest"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " in:\n" << result.out;
  const std::string lines = test::read_file(csv);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  EXPECT_NE(lines.find("\n8,1,"), std::string::npos) << lines;
  const std::string svg = test::read_file(plot);
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("context, tokens"), std::string::npos);
}

TEST(OtherSpeeds, AreReadByTheirColumns) {
  const test::TemporaryFolder folder;
  const auto read = [&](std::string_view text) {
    const auto path = folder.path() / "llama.cpp.csv";
    test::write_file(path, text);
    return read_other_speeds(path);
  };
  const auto fault = [&](std::string_view text) { return test::message_of([&] { read(text); }); };
  const OtherSpeeds speeds = read(
      "digest,decode_tokens_per_second,context,prefill_tokens_per_second\r\n"
      "x,200,4096,9000\r\n\r\nx,,512,5000\r\n");
  EXPECT_EQ(speeds.name, "llama.cpp");
  ASSERT_EQ(speeds.prefill.size(), 2U);
  EXPECT_EQ(speeds.prefill[0].context, 512) << "by context";
  EXPECT_EQ(speeds.prefill[0].speed, 5000);
  ASSERT_EQ(speeds.decode.size(), 1U);
  EXPECT_EQ(speeds.decode[0].speed, 200);
  EXPECT_EQ(
      read("context,decode_tokens_per_second,decode_tokens_per_second_all_slots\n8,1,4").decode[0].speed, 4);

  EXPECT_NE(fault("speed\n1\n").find("no column \"context\""), std::string::npos);
  EXPECT_NE(fault("context,decode_tokens_per_second\n8,fast\n").find("line 2: \"fast\""), std::string::npos);
  EXPECT_NE(fault("context,decode_tokens_per_second\n8,-1\n").find("above 0"), std::string::npos);
  EXPECT_NE(fault("context,decode_tokens_per_second\n,5\n").find("line 2: has no context"),
            std::string::npos);
  for (const char* length : {"1.5", "1e300"}) {
    EXPECT_NE(fault(fmt::format("context,decode_tokens_per_second\n{},5\n", length)).find("not a length"),
              std::string::npos);
  }
  EXPECT_NE(fault("context\n8\n").find("has no speeds"), std::string::npos);
  EXPECT_NE(fault("").find("has no speeds"), std::string::npos);
}

TEST(Bench, DrawsOtherSpeedsBesideItsOwn) {
  const test::TemporaryFolder folder;
  const std::string other = (folder.path() / "a<b.csv").string();
  const std::string plot = (folder.path() / "speed.svg").string();
  test::write_file(other, "context,prefill_tokens_per_second,decode_tokens_per_second\n4,10,5\n64,12,6\n");
  const auto result = run_calla({"bench", "--steps", "2", "--rounds", "1", "--contexts", "8", "--synthetic",
                                 "demo:2", "--plot", plot, "--beside", other});
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string svg = test::read_file(plot);
  for (const char* part : {">a&lt;b</text>", ">4</text>", ">64</text>", ">8</text>"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(run_calla({"bench", "--beside", other}).code, 2) << "there is no plot";
  const auto missing = run_calla({"bench", "--contexts", "8", "--plot", plot, "--beside", "/nowhere.csv"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("/nowhere.csv"), std::string::npos) << missing.err;
}

TEST(Bench, RefusesAContextThatHasNoRoom) {
  const auto too_long = run_calla({"bench", "--contexts", "16,4090"});
  EXPECT_EQ(too_long.code, 1);
  for (const char* part : {"context 4090", "4156 positions", "4096"})
    EXPECT_NE(too_long.err.find(part), std::string::npos) << part << " in: " << too_long.err;
  const auto too_many = run_calla({"bench", "--contexts", "4000", "--batch", "1000000"});
  EXPECT_EQ(too_many.code, 1);
  EXPECT_NE(too_many.err.find("of memory"), std::string::npos) << too_many.err;
  EXPECT_EQ(run_calla({"bench", "--contexts", "0"}).code, 2);
  EXPECT_EQ(run_calla({"bench", "--steps", "many"}).code, 2);
}

}  // namespace
}  // namespace calla::cli
