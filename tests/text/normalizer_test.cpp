#include "text/normalizer.h"

#include <initializer_list>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace calla {
namespace {

std::string repeated(std::string_view text, std::size_t times) {
  std::string whole;
  for (std::size_t i = 0; i < times; ++i) whole.append(text);
  return whole;
}

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string whole;
  for (const std::string_view part : parts) whole.append(part);
  return whole;
}

TEST(Normalizer, KnowsWhatIsInNfc) {
  for (const char* text :
       {"", "plain", "caf\u00e9", "\u02ff", "\u4e2d\u6587", "\u0e01\u0e38\u0e48", "\U0001F600", "q\u0301"}) {
    EXPECT_TRUE(is_known_nfc(text)) << text;
    EXPECT_EQ(to_nfc(text), text);
  }
}

TEST(Normalizer, ComposesAndReorders) {
  const auto check = [](std::string_view text, std::string_view expected) {
    EXPECT_FALSE(is_known_nfc(text)) << text;
    EXPECT_EQ(to_nfc(text), expected);
  };
  check("e\u0301", "\u00e9");
  check("\u212b", "\u00c5");
  check("a\u0301\u0323", "\u1ea1\u0301");
  check("\u1100\u1161\u11a8", "\uac01");
  check("\u0958", "\u0915\u093c");
  check("x\U0001D15E", "x\U0001D157\U0001D165");
  check("\u0344", "\u0308\u0301");
}

TEST(Normalizer, LongRunsOfMarksComeOutAsShortOnesWould) {
  // n pairs of a mark below (class 220) and one above (230), in the wrong order: all below first, the first
  // above cannot be composed with a letter that has none.
  for (const std::size_t n : {1U, 10U, 16U, 17U, 40U, 1000U}) {
    const std::string above = repeated("\u0301", n);
    const std::string below = repeated("\u0323", n);
    const std::string mixed = repeated("\u0301\u0323", n);
    EXPECT_EQ(to_nfc(joined({"q", mixed, "e\u0301"})), joined({"q", below, above, "\u00e9"})) << n;
    EXPECT_FALSE(is_known_nfc(joined({"q", mixed}))) << n;
    // The first mark below is composed with "a"; of marks in one class, the first stands nearest.
    EXPECT_EQ(to_nfc(joined({"a", mixed})), joined({"\u1ea1", repeated("\u0323", n - 1), above})) << n;
    // Marks that are decomposed, at the beginning and at the end of a text.
    EXPECT_EQ(to_nfc(repeated("\u0344\u0f73", n)),
              joined({repeated("\u0f71", n), repeated("\u0f72", n), repeated("\u0308\u0301", n)}))
        << n;
  }
}

TEST(Normalizer, AMegabyteOfMarksIsQuick) {
  const std::string text = repeated("\u0301\u0323", 250'000);
  EXPECT_FALSE(is_known_nfc(text));
  EXPECT_EQ(to_nfc(text).size(), text.size());
  const std::string jamo = repeated("\u1100\u1161", 170'000);
  EXPECT_EQ(to_nfc(jamo), repeated("\uac00", 170'000));
}

}  // namespace
}  // namespace calla
