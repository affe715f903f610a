// Encoding and loading speed of the tokenizer: the demonstration model's, and the real one's where CALLA_QWEN
// names the folder of its small files.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "text/tokenizer.h"

namespace {
namespace fs = std::filesystem;
using calla::Tokenizer;

/// The folder of an unpacked tokenizer.json.
class Model {
 public:
  explicit Model(fs::path folder) : folder_(std::move(folder)) {}
  const fs::path& folder() const { return folder_; }
  const Tokenizer& tokenizer() {
    if (!tokenizer_) tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(folder_));
    return *tokenizer_;
  }

 private:
  fs::path folder_;
  std::unique_ptr<Tokenizer> tokenizer_;  // when a benchmark first asks for it
};

fs::path unpacked(const fs::path& packed) {
  fs::path folder = fs::temp_directory_path() / "calla-bench" / packed.parent_path().filename();
  fs::create_directories(folder);
  const std::string command =
      fmt::format("xz -dc '{}' > '{}'", packed.string(), (folder / "tokenizer.json").string());
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);  // NOLINT
  return folder;
}

std::string repeated(std::string_view text, std::size_t bytes) {
  std::string whole;
  while (whole.size() < bytes) whole.append(text);
  return whole;
}

constexpr std::size_t megabyte = 1'000'000;

constexpr std::string_view english =
    "It was a bright cold day in the town by the river, and the clocks hadn't struck nine when Margaret, who "
    "had been "
    "walking since dawn, came over the last of the hills. \"You're early,\" said the ferryman; he didn't "
    "look up from "
    "his newspaper. The crossing costs 12 pence on weekdays, 15 on Sundays, and nothing at all for anyone "
    "who can name "
    "the seven bridges downstream.\n\nShe could name four. An engineer from the county council -- a "
    "cautious, "
    "bespectacled woman named Whitcombe -- had once listed them for her, along with their spans, their "
    "foundations and "
    "the peculiarities of their construction; but that conversation belonged to another summer.\n";

constexpr std::string_view source_code =
    "template <typename T>\nstd::vector<T> filter(const std::vector<T>& values, std::function<bool(const "
    "T&)> keep) {\n"
    "  std::vector<T> kept;\n  for (const T& value : values) {\n    if (keep(value)) kept.push_back(value);  "
    "// O(n)\n  }\n"
    "  return kept;\n}\n\ndef parse_line(line: str) -> dict[str, int]:\n    \"\"\"Reads `key = value` "
    "pairs.\"\"\"\n"
    "    result = {}\n    for part in line.split(','):\n        key, _, value = part.partition('=')\n"
    "        result[key.strip()] = int(value, 16) if value.startswith('0x') else 0\n    return result\n\n"
    "<div class=\"row\"><a href=\"/index.html\">home</a> <span id=\"n42\">&lt;empty&gt;</span></div>\n";

constexpr std::string_view thai_and_chinese =
    "\u0e01\u0e23\u0e38\u0e07\u0e40\u0e17\u0e1e\u0e21\u0e2b\u0e32\u0e19\u0e04\u0e23\u0e40\u0e1b\u0e47\u0e19"
    "\u0e40\u0e21\u0e37\u0e2d\u0e07\u0e2b\u0e25\u0e27\u0e07\u0e02\u0e2d\u0e07\u0e1b\u0e23\u0e30\u0e40\u0e17"
    "\u0e28"
    "\u0e44\u0e17\u0e22 "
    "\u0e21\u0e35\u0e1b\u0e23\u0e30\u0e0a\u0e32\u0e01\u0e23\u0e2b\u0e25\u0e32\u0e22\u0e25\u0e49"
    "\u0e32\u0e19\u0e04\u0e19 "
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65"
    "\u3002\u56fe\u4e66\u9986\u91cc\u6709\u4e09\u5343\u591a\u672c\u4e66\uff0c\u5927\u591a\u662f\u5386\u53f2"
    "\u548c"
    "\u54f2\u5b66\u3002\n";

// A megabyte of paragraphs that differ only in their numbers: its words stay in the caches, so that varied
// text runs at about two thirds of this speed.
std::string numbered(std::string_view paragraph) {
  std::string whole;
  for (int i = 0; whole.size() < megabyte; ++i) whole.append(fmt::format("{}. ", i)).append(paragraph);
  return whole;
}

void encode(benchmark::State& state, Model& model, const std::string& text) {
  const Tokenizer& tokenizer = model.tokenizer();
  std::size_t tokens = 0;
  while (state.KeepRunning()) {
    tokens = tokenizer.encode(text, Tokenizer::ControlTokens::recognised).size();
    benchmark::DoNotOptimize(tokens);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(text.size()));
  state.counters["tokens"] = static_cast<double>(tokens);
}

void load(benchmark::State& state, const Model& model) {
  while (state.KeepRunning()) benchmark::DoNotOptimize(Tokenizer::load(model.folder()).size());
}

void decode(benchmark::State& state, Model& model, const std::string& text) {
  const Tokenizer& tokenizer = model.tokenizer();
  const std::vector<calla::Token> tokens = tokenizer.encode(text, Tokenizer::ControlTokens::as_text);
  while (state.KeepRunning()) benchmark::DoNotOptimize(tokenizer.decode(tokens).data());
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                          static_cast<std::int64_t>(text.size()));
}
}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, Model> models;
  models.emplace("demo", fs::path(CALLA_DEMO_MODEL));
  if (const char* qwen = std::getenv("CALLA_QWEN"); qwen != nullptr) {  // NOLINT(concurrency-mt-unsafe)
    for (const char* name : {"qwen3.6-35b-a3b", "qwen3.6-35b-a3b-4bit"}) {
      models.emplace(name, unpacked(fs::path(qwen) / name / "tokenizer.json.xz"));
    }
  }
  const std::map<std::string, std::string> texts{
      {"english", numbered(english)},
      {"source_code", numbered(source_code)},
      {"thai_and_chinese", numbered(thai_and_chinese)},
      {"run_of_one_letter", std::string(megabyte, 'a')},
      {"run_of_spaces", std::string(megabyte, ' ')},
      {"run_of_digits", repeated("1234567890", megabyte)},
      {"run_of_emoji", repeated("\U0001F600", megabyte)},
      {"run_of_chinese", repeated("\u4eca\u5929\u6c14", megabyte)},
  };
  for (auto& [name, model] : models) {
    benchmark::RegisterBenchmark(fmt::format("{}/load", name).c_str(), [&m = model](auto& state) {
      load(state, m);
    })->Unit(benchmark::kMillisecond);
    for (const auto& [kind, text] : texts) {
      benchmark::RegisterBenchmark(fmt::format("{}/encode/{}", name, kind).c_str(), [&m = model,
                                                                                     &t = text](auto& state) {
        encode(state, m, t);
      })->Unit(benchmark::kMillisecond);
    }
    benchmark::RegisterBenchmark(fmt::format("{}/decode/english", name).c_str(),
                                 [&m = model, &t = texts.at("english")](auto& state) { decode(state, m, t); })
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
