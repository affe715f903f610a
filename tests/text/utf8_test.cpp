#include "text/utf8.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

TEST(Utf8, FindsTheFirstIllFormedByte) {
  EXPECT_EQ(first_invalid_utf8("plain"), 5U);
  EXPECT_EQ(first_invalid_utf8("é€😀"), 9U);
  EXPECT_EQ(first_invalid_utf8("ab\xFF"), 2U);
  EXPECT_EQ(first_invalid_utf8("\xC0\x80"), 0U) << "an overlong form";
  EXPECT_EQ(first_invalid_utf8("\xED\xA0\x80"), 0U) << "a surrogate";
  EXPECT_EQ(first_invalid_utf8("\xF4\x90\x80\x80"), 0U) << "beyond U+10FFFF";
  EXPECT_EQ(first_invalid_utf8("x\xE2\x82"), 1U) << "cut off by the end";
}

TEST(Utf8, MendsEachMaximalPartOnce) {
  EXPECT_EQ(mend_utf8("a\xFFz"), "a\uFFFDz");
  EXPECT_EQ(mend_utf8("\xF0\x9F\x98!"), "\uFFFD!") << "three good bytes of four are one part";
  EXPECT_EQ(mend_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD") << "no byte of a surrogate begins a sequence";
  EXPECT_EQ(mend_utf8("end\xE2\x82"), "end\uFFFD");
}

TEST(Utf8, AssemblesAnEmojiThatTokensSplit) {
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.push("ob "), "ob ");
  EXPECT_EQ(assembler.push("\xF0\x9F"), "");
  EXPECT_EQ(assembler.push("\x98\x80"), "😀");
  EXPECT_EQ(assembler.push("!"), "!");
  EXPECT_EQ(assembler.finish(), "");
}

TEST(Utf8, AssemblesThaiSplitInsideACodePointAndBeforeAMark) {
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.push("\xE0\xB8\xAB\xE0"), "ห");
  EXPECT_EQ(assembler.push("\xB9\x89\xE0\xB8\xB2"), "้า");
  EXPECT_EQ(assembler.push("\xE0\xB8\xA1"), "ม");
}

TEST(Utf8, AnyCutGivesTheMendedWhole) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\x80\xFF\xF0\x9F\x98";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      Utf8Assembler assembler;
      std::string joined = assembler.push(text.substr(0, first));
      joined += assembler.push(text.substr(first, second - first));
      joined += assembler.push(text.substr(second));
      joined += assembler.finish();
      ASSERT_EQ(joined, mend_utf8(text)) << first << ", " << second;
    }
  }
}

}  // namespace
}  // namespace calla
