#include "text/stop_strings.h"

#include <chrono>
#include <random>

#include <gtest/gtest.h>

namespace calla {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::string> matched;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string_view>& pieces) {
  StopStrings matcher(stops);
  Outcome outcome;
  for (const std::string_view piece : pieces) outcome.text += matcher.push(piece);
  outcome.text += matcher.finish();
  outcome.matched = matcher.matched();
  return outcome;
}

/// The definition, word for word: the first end of a stop string, and there the longest.
Outcome expected(const std::vector<std::string>& stops, std::string_view text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::string> longest;
    for (const std::string& stop : stops) {
      if (stop.empty() || !text.substr(0, end).ends_with(stop)) continue;
      if (!longest || stop.size() > longest->size()) longest = stop;
    }
    if (longest) return {std::string(text.substr(0, end - longest->size())), longest};
  }
  return {std::string(text), std::nullopt};
}

TEST(StopStrings, FindsAStopStringOverAPieceBoundary) {
  StopStrings stops({"own fox"});
  EXPECT_EQ(stops.push("The quick br"), "The quick br");
  EXPECT_EQ(stops.push("own"), "");
  EXPECT_FALSE(stops.matched());
  EXPECT_EQ(stops.push(" fox jumps"), "");
  EXPECT_EQ(stops.matched(), "own fox");
  EXPECT_EQ(stops.push(" more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, FlushesAFalseAlarm) {
  StopStrings stops({"</end>"});
  EXPECT_EQ(stops.push("x</end"), "x");
  EXPECT_EQ(stops.push("ing> y"), "</ending> y");
  EXPECT_EQ(stops.push("z</e"), "z");
  EXPECT_EQ(stops.finish(), "</e");
  EXPECT_FALSE(stops.matched());
}

TEST(StopStrings, HoldsBackNoMoreThanABeginning) {
  StopStrings stops({"abab!", "bac"});
  EXPECT_EQ(stops.push("xaba"), "x") << "aba is longer than ba";
  EXPECT_EQ(stops.push("x"), "abax");
  EXPECT_EQ(stops.push("ababa"), "ab") << "the beginning may begin later";
  EXPECT_EQ(stops.push("b!"), "");
  EXPECT_EQ(stops.matched(), "abab!");
}

TEST(StopStrings, EndsAtTheFirstCompleteStopStringAndTakesTheLongestThere) {
  EXPECT_EQ(run({"bc", "abcd"}, {"xabcd"}), (Outcome{"xa", "bc"}));
  EXPECT_EQ(run({"\n", "\n\n"}, {"a\n\nb"}), (Outcome{"a", "\n"}));
  EXPECT_EQ(run({"c", "abc", "bc"}, {"xabc"}), (Outcome{"x", "abc"}));
  EXPECT_EQ(run({"end"}, {"endend"}), (Outcome{"", "end"}));
}

TEST(StopStrings, PassesEverythingWithoutStopStrings) {
  EXPECT_EQ(run({}, {"a", "", "b"}), (Outcome{"ab", std::nullopt}));
  EXPECT_EQ(run({"", ""}, {"a", "b"}), (Outcome{"ab", std::nullopt}));
  EXPECT_EQ(run({"", "b"}, {"a", "b"}), (Outcome{"a", "b"}));
}

TEST(StopStrings, KeepsCodePointsWhole) {
  StopStrings stops({"é!", "😀😀"});
  EXPECT_EQ(stops.push("aé"), "a");
  EXPECT_EQ(stops.push("è"), "éè");
  EXPECT_EQ(stops.push("😀"), "");
  EXPECT_EQ(stops.push("😁"), "😀😁");
}

TEST(StopStrings, EveryCutOfRandomTextsGivesTheSame) {
  std::mt19937 random(7);
  const auto word = [&](std::size_t longest) {
    std::string text(random() % (longest + 1), ' ');
    for (char& c : text) c = "ab"[random() % 2];
    return text;
  };
  for (int round = 0; round < 400; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = word(6);
    const std::string text = word(14);
    const Outcome whole = expected(stops, text);
    const std::string_view view = text;
    for (std::size_t first = 0; first <= text.size(); ++first) {
      for (std::size_t second = first; second <= text.size(); ++second) {
        ASSERT_EQ(
            run(stops, {view.substr(0, first), view.substr(first, second - first), view.substr(second)}),
            whole)
            << testing::PrintToString(stops) << ' ' << text << ' ' << first << ' ' << second;
      }
    }
    std::vector<std::string_view> bytes;
    for (std::size_t i = 0; i < text.size(); ++i) bytes.push_back(view.substr(i, 1));
    ASSERT_EQ(run(stops, bytes), whole) << testing::PrintToString(stops) << ' ' << text;
  }
}

TEST(StopStrings, IsLinearWhereEveryByteIsAFalseAlarm) {
  constexpr std::size_t length = 200'000;
  StopStrings stops({std::string(length / 2, 'a') + "b"});
  const auto start = std::chrono::steady_clock::now();
  std::size_t passed = 0;
  for (std::size_t i = 0; i < length; ++i) passed += stops.push("a").size();
  EXPECT_EQ(passed, length / 2);
  EXPECT_EQ(stops.finish().size(), length / 2);
  // Quadratic work is ten thousand million steps, linear work less than a millisecond.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

}  // namespace
}  // namespace calla
