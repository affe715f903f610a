#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/eval_score.h"
#include "program.h"
#include "support/support.h"

namespace calla::cli {
namespace {

using test::run_calla;

/// Gives the logits of a table: row (token mod rows), whatever came before.
class TableBackend final : public Backend {
 public:
  explicit TableBackend(std::vector<std::vector<float>> rows) : rows_(std::move(rows)) {}

  std::string_view device() const override { return "table"; }
  const MemoryPlan& memory() const override { return memory_; }
  int prefill_chunk() const override { return 32; }
  int prefill_grain() const override { return 1; }
  void reset(int) override { ++resets; }
  int position(int) const override { return 0; }
  void set_sampling(int, const SamplingParams&, std::span<const Token>) override {}
  void prefill(int, std::span<const Token>, bool) override {}
  void submit(std::span<const int>) override {}
  std::vector<SampledToken> collect() override { return {}; }
  void abandon() noexcept override {}
  void score(int, std::span<const Token> tokens, const LogitsVisitor& visit) override {
    largest_piece = std::max(largest_piece, tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i)
      visit(i, rows_[static_cast<std::size_t>(tokens[i]) % rows_.size()]);
  }
  std::unique_ptr<Snapshot> snapshot(int) override { return nullptr; }
  void restore(int, const Snapshot&) override {}
  std::string snapshot_format() const override { return "table"; }
  std::unique_ptr<Snapshot> load_snapshot(std::istream&, const Snapshot*) override { return nullptr; }

  int resets = 0;
  std::size_t largest_piece = 0;

 private:
  std::vector<std::vector<float>> rows_;
  MemoryPlan memory_;
};

const std::function<void(std::uint64_t)> silent = [](std::uint64_t) {};

std::vector<float> logits_of(std::initializer_list<double> probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 5);  // any constant
  return logits;
}

TEST(Compare, IsTheDivergenceOfTheDistributions) {
  const std::vector<float> p = logits_of({0.5, 0.25, 0.25});
  const std::vector<float> q = logits_of({0.25, 0.5, 0.25});
  const Compared compared = compare(p, q, 1);
  EXPECT_NEAR(compared.divergence, 0.5 * std::log(2) - 0.25 * std::log(2), 1e-6);
  EXPECT_NEAR(compared.logprob_p, std::log(0.25), 1e-6);
  EXPECT_NEAR(compared.logprob_q, std::log(0.5), 1e-6);
  EXPECT_EQ(compare(p, p, 0).divergence, 0);
}

TEST(Evaluate, CountsPerplexityAndHits) {
  TableBackend backend(
      {logits_of({0.5, 0.25, 0.25}), logits_of({0.1, 0.1, 0.8}), logits_of({0.2, 0.2, 0.6})});
  const std::vector<Document> documents{{"one", {0, 1, 2, 0}}, {"two", {1, 2}}};
  const EvalLimits limits{.window = 10};
  const Evaluation result = evaluate(backend, nullptr, documents, limits, silent);
  EXPECT_EQ(result.backend.positions(), 4U);
  EXPECT_EQ(positions_of(documents, limits), 4U);
  // 0 -> 1: 0.25; 1 -> 2: 0.8, a hit; 2 -> 0: 0.2; 1 -> 2: 0.8, a hit.
  EXPECT_NEAR(result.backend.perplexity(), std::pow(0.25 * 0.8 * 0.2 * 0.8, -0.25), 1e-6);
  EXPECT_DOUBLE_EQ(result.backend.accuracy(), 0.5);
  EXPECT_EQ(backend.resets, 2);
  EXPECT_FALSE(result.comparison);
}

TEST(Evaluate, CutsWindowsAndStopsAfterPositions) {
  TableBackend backend({logits_of({0.5, 0.5})});
  const std::vector<Document> documents{{"long", std::vector<Token>(101, 1)}};
  EXPECT_EQ(positions_of(documents, {.window = 50}), 98U) << "50, 50, and a rest of one token";
  EXPECT_EQ(evaluate(backend, nullptr, documents, {.window = 50}, silent).backend.positions(), 98U);
  EXPECT_EQ(backend.resets, 2) << "nothing to score in the rest";
  EXPECT_EQ(backend.largest_piece, 49U);
  auto table = std::make_unique<TableBackend>(std::vector<std::vector<float>>{logits_of({0.5, 0.5})});
  const TableBackend& compared = *table;
  const auto reference = logits_of_backend(std::move(table));
  evaluate(backend, reference.get(), documents, {.window = 50}, silent);
  EXPECT_EQ(compared.largest_piece, 32U) << "few logits are held";
  const EvalLimits few{.window = 50, .positions = 60};
  EXPECT_EQ(positions_of(documents, few), 60U);
  EXPECT_EQ(evaluate(backend, nullptr, documents, few, silent).backend.positions(), 60U);
}

TEST(Evaluate, FindsWhereTheReferenceDiffers) {
  const auto reference = logits_of_backend(std::make_unique<TableBackend>(
      std::vector<std::vector<float>>{logits_of({0.5, 0.3, 0.2}), logits_of({0.1, 0.1, 0.8})}));
  TableBackend backend({logits_of({0.5, 0.3, 0.2}), logits_of({0.1, 0.6, 0.3})});
  const std::vector<Document> documents{{"same", {0, 2, 0}}, {"other", {0, 1, 2, 1}}};
  const Evaluation result = evaluate(backend, reference.get(), documents, {.window = 10}, silent);
  const Comparison& comparison = result.comparison.value();
  EXPECT_EQ(comparison.agreements, 4U);
  ASSERT_TRUE(comparison.first);
  EXPECT_EQ(comparison.first->place.document, 1U);
  EXPECT_EQ(comparison.first->place.position, 2U) << "the prediction after token 1";
  EXPECT_EQ(comparison.first->expected, 2);
  EXPECT_EQ(comparison.first->reference, 2);
  EXPECT_EQ(comparison.first->backend, 1);
  EXPECT_EQ(comparison.worst.position, 2U);
  EXPECT_NEAR(comparison.worst_divergence, 0.1 * std::log(0.1 / 0.6) + 0.8 * std::log(0.8 / 0.3), 1e-6);
  EXPECT_DOUBLE_EQ(comparison.divergence, comparison.worst_divergence) << "nowhere else";
  EXPECT_GT(result.backend.perplexity(), comparison.reference.perplexity());
}

// A tie may be decided otherwise wherever arithmetic rounds elsewhere; a clear choice may not.
TEST(Evaluate, TellsClearDifferencesFromTies) {
  const auto reference = logits_of_backend(std::make_unique<TableBackend>(
      std::vector<std::vector<float>>{{1.0F, 0.96F, 0.0F}, {1.0F, 0.94F, 0.0F}, {1.0F, 0.0F, 0.0F}}));
  TableBackend backend({{0.96F, 1.0F, 0.0F}, {0.94F, 1.0F, 0.0F}, {1.0F, 0.9F, 0.0F}});
  const std::vector<Document> documents{{"d", {0, 1, 2, 0}}};
  const Comparison comparison =
      evaluate(backend, reference.get(), documents, {.window = 10}, silent).comparison.value();
  EXPECT_EQ(comparison.agreements, 1U);
  EXPECT_EQ(comparison.clear_differences, 1U) << "the second, where the first is 0.06 above";
}

struct NamedTensor {
  std::string name;
  std::string dtype;
  std::vector<std::size_t> shape;
  std::string bytes;
};
std::string tensor_file(const std::vector<NamedTensor>& tensors) {
  Json header = Json::object();
  std::string bytes;
  for (const NamedTensor& tensor : tensors) {
    const std::size_t begin = bytes.size();
    bytes += tensor.bytes;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, bytes.size()}}};
  }
  const std::string text = header.dump();
  std::string length(8, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text + bytes;
}
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
NamedTensor ids_tensor(const std::string& name, const std::vector<Token>& ids) {
  return {name, "I32", {ids.size()}, bytes_of(ids)};
}
constexpr std::size_t demo_vocabulary = 2560;
NamedTensor logits_tensor(const std::string& name, std::size_t tokens, float value) {
  return {
      name, "F32", {tokens, demo_vocabulary}, bytes_of(std::vector<float>(tokens * demo_vocabulary, value))};
}

class Eval : public testing::Test {
 protected:
  std::string file(const char* name, std::string_view content) {
    test::write_file(folder_.path() / name, content);
    return (folder_.path() / name).string();
  }
  static Json evaluated(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"eval", "--json"});
    const auto result = run_calla(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? parse_json(result.out, "output") : Json();
  }
  static void expect_refused(const std::vector<std::string>& arguments,
                             std::initializer_list<const char*> parts, int code = 1) {
    const auto result = run_calla(arguments);
    EXPECT_EQ(result.code, code) << result.err;
    for (const char* part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << part << " in: " << result.err;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Eval, TheReferenceDoesNotDifferFromItself) {
  const Json report = evaluated({test::data("held_out.jsonl").string(), "--backend", "reference", "--against",
                                 "reference", "--max-positions", "150"});
  EXPECT_EQ(report.at("positions"), 150);
  EXPECT_LT(report.at("perplexity"), 1.5) << "the model has learnt such conversations";
  EXPECT_GT(report.at("top1"), 0.85);
  const Json& against = report.at("against");
  EXPECT_EQ(against.at("perplexity_difference_percent"), 0);
  EXPECT_EQ(against.at("top1_agreement"), 1);
  EXPECT_EQ(against.at("kl_mean"), 0);
  EXPECT_EQ(against.at("kl_worst"), 0);
  EXPECT_TRUE(against.at("first_difference").is_null());
}

TEST_F(Eval, AConversationAndItsIdsAreTheSame) {
  const std::string line =
      R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello!"}]})";
  const Json whole = evaluated({file("c.jsonl", line + "\n\n" + line + "\n")});
  EXPECT_EQ(whole.at("documents"), 2);
  const Json one = evaluated({file("c.json", line)});
  EXPECT_NEAR(one.at("perplexity").get<double>(), whole.at("perplexity").get<double>(), 1e-9);

  Json request = parse_json(line, "line");
  request["chat_template_kwargs"] = {{"add_generation_prompt", false}};
  const auto rendered = run_calla({"render", "--json", "--messages", file("m.json", request.dump())});
  const Json ids = parse_json(rendered.out, "output").at("ids");
  EXPECT_EQ(evaluated({file("c.ids", ids.dump())}).at("perplexity"), one.at("perplexity"));
  EXPECT_EQ(evaluated({file("cc.ids", Json{ids, ids}.dump())}).at("documents"), 2);
  EXPECT_EQ(evaluated({file("d.ids", ids.dump())}).at("positions"), ids.size() - 1);
}

TEST_F(Eval, ReadsTheBeginningAsAPrompt) {
  const std::string text =
      file("story.txt", "Once upon a time there was a small cat named Ann. Ann lived near the river.");
  const Json whole = evaluated({text});
  const Json rest = evaluated({text, "--prefill", "5"});
  EXPECT_EQ(rest.at("positions").get<int>(), whole.at("positions").get<int>() - 5);
  expect_refused({"eval", text, "--prefill", "500"}, {"--prefill", "nothing to score"});
}

TEST_F(Eval, PlainTextIsCutIntoWindows) {
  const std::string text =
      file("story.txt", "Once upon a time there was a small cat named Ann. Ann lived near the river.");
  const Json whole = evaluated({text});
  const Json cut = evaluated({text, "--context", "8"});
  EXPECT_LT(cut.at("positions"), whole.at("positions"));
  EXPECT_NE(cut.at("perplexity"), whole.at("perplexity"));
  const auto shown = run_calla({"eval", text, "--backend", "reference", "--against", "reference"});
  for (const char* part : {"perplexity", "top-1", "+0.0000 %", "100.00 %"})
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << " in:\n" << shown.out;
}

TEST_F(Eval, ComparesWithTheLogitsOfOtherSoftware) {
  const auto folder = test::goldens();
  CALLA_REQUIRE(folder, "CALLA_GOLDENS");
  const std::string golden = (*folder / "demo/golden.safetensors").string();
  const Json report = evaluated({golden, "--backend", "reference", "--against", golden});
  EXPECT_EQ(report.at("documents"), 5);
  const Json& against = report.at("against");
  EXPECT_NEAR(against.at("perplexity_difference_percent").get<double>(), 0, 0.001);
  EXPECT_EQ(against.at("clear_differences"), 0);
  EXPECT_LT(against.at("kl_worst").get<double>(), 1e-6);
}

TEST_F(Eval, LogitsOfAFileAreTakenInTheirPlace) {
  const std::string logits = file(
      "l.safetensors", tensor_file({ids_tensor("0.ids", {5, 6, 7}), ids_tensor("1.ids", {8, 9}),
                                    logits_tensor("0.logits", 3, 1.5F), logits_tensor("1.logits", 2, 1.5F)}));
  const Json report = evaluated({file("d.ids", "[[5, 6, 7], [8, 9]]"), "--against", logits});
  EXPECT_EQ(report.at("positions"), 3);
  EXPECT_NEAR(report.at("against").at("reference").at("perplexity").get<double>(), demo_vocabulary, 1e-6)
      << "all tokens are as probable";
  EXPECT_EQ(report.at("against").at("clear_differences"), 0) << "and none is clearly the first";
  EXPECT_EQ(evaluated({logits, "--against", logits}).at("perplexity"), report.at("perplexity"));
  EXPECT_EQ(evaluated({logits, "--against", logits, "--prefill", "1"}).at("positions"), 1);
}

TEST_F(Eval, WrongFilesOfLogits) {
  const std::vector<Token> tokens{5, 6, 7};
  const NamedTensor ids = ids_tensor("0.ids", tokens);
  const std::string logits = file("l.safetensors", tensor_file({ids, logits_tensor("0.logits", 3, 1.5F)}));
  const std::string document = file("e.ids", "[5, 6, 7]");
  expect_refused({"eval", file("x.ids", "[5, 6, 8]"), "--against", logits},
                 {"l.safetensors 0.ids", "has 7 at index 2", "the document has 8"});
  expect_refused({"eval", file("y.ids", "[5, 6]"), "--against", logits}, {"0.ids", "I32 [3]", "I32 [2]"});
  expect_refused({"eval", logits, "--against", logits, "--context", "2"}, {"--context", "0.ids of 3 tokens"});
  expect_refused({"eval", document, "--against", file("n.safetensors", tensor_file({ids}))},
                 {"n.safetensors 0.logits", "is missing"});
  const NamedTensor small{"0.logits", "F32", {3, 2}, std::string(24, '\0')};
  expect_refused({"eval", document, "--against", file("s.safetensors", tensor_file({ids, small}))},
                 {"s.safetensors 0.logits", "F32 [3, 2]", "F32 [3, 2560]"});
  expect_refused({"eval", document, "--against", "/nowhere.safetensors"}, {"/nowhere.safetensors"});

  expect_refused({"eval", file("o.safetensors", tensor_file({logits_tensor("0.logits", 1, 0)}))},
                 {"o.safetensors", "no tensor 0.ids"});
  expect_refused({"eval", file("v.safetensors", tensor_file({ids_tensor("0.ids", {1, 2560})}))},
                 {"v.safetensors 0.ids", "2560 at index 1", "0 to 2559"});
  expect_refused({"eval", file("t.safetensors", tensor_file({{"0.ids", "F32", {2}, std::string(8, '\0')}}))},
                 {"t.safetensors 0.ids", "F32 [2]"});
}

TEST_F(Eval, ScoresSyntheticWeights) {
  const Json report = evaluated({file("x.ids", "[1, 2, 3, 2559]"), "--synthetic", "demo:2"});
  EXPECT_EQ(report.at("model"), "Calla demo, 2 layers, synthetic");
  EXPECT_GT(report.at("perplexity"), 10);
}

TEST_F(Eval, WrongFiles) {
  expect_refused({"eval", "/nowhere.txt"}, {"/nowhere.txt", "cannot be read"});
  expect_refused({"eval", file("e.txt", " \n")}, {"e.txt", "is empty"});
  expect_refused({"eval", file("e.jsonl", "")}, {"e.jsonl", "is empty"});
  expect_refused({"eval", file("b.ids", "[1, 2560]")}, {"b.ids", "2560 at index 1", "0 to 2559"});
  expect_refused({"eval", file("n.ids", "[[1, 2], [1, -1]]")}, {"n.ids document 2", "-1 at index 1"});
  expect_refused({"eval", file("f.ids", "[1.5, 2]")}, {"1.5 at index 0"});
  expect_refused({"eval", file("m.ids", "[[1, 2], 3]")}, {"m.ids document 2", "not an array"});
  expect_refused({"eval", file("o.ids", "[[1, 2], [7]]")},
                 {"o.ids document 2", "has 1 token", "nothing to predict"});
  expect_refused({"eval", file("z.ids", "[]")}, {"z.ids", "has 0 tokens"});
  expect_refused({"eval", file("s.json", "\"text\"")}, {"s.json", "neither token ids nor a conversation"});
  expect_refused({"eval", file("j.jsonl", "\n{\"messages\": \n")}, {"j.jsonl line 2", "not valid JSON"});
  expect_refused({"eval", file("p.jsonl", R"({"messages":[{"role":"pope","content":"x"}]})")},
                 {"p.jsonl line 1", "messages[0].role", "pope"});
  expect_refused({"eval", file("u.txt", "ab\xFF")}, {"u.txt", "UTF-8"});
  expect_refused({"eval", file("t.txt", "some words"), "--context", "5000"}, {"--context", "5000", "4096"});
  expect_refused({"eval", file("v.txt", "some words"), "--context", "1"}, {"--context"}, 2);
  expect_refused({"eval", file("w.txt", "some words"), "--against", "truth"}, {"--against"}, 2);
  expect_refused({"eval"}, {"FILE"}, 2);
}

}  // namespace
}  // namespace calla::cli
