#include "base/error.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

TEST(Error, JoinsWhereWhatAndAdviceOnOneLine) {
  EXPECT_STREQ(Error("config.json", "has no model_type", "download it again").what(),
               "config.json: has no model_type; download it again");
  EXPECT_STREQ(Error("config.json", "has no model_type").what(), "config.json: has no model_type");
  EXPECT_STREQ(Error("", "no device", "use the CPU").what(), "no device; use the CPU");
  EXPECT_STREQ(Error("", "no device").what(), "no device");
}

TEST(Error, OfARequestNamesTheFieldAndTheReason) {
  const RequestError fault("messages[2].content", "is empty", "write something", "empty_content");
  EXPECT_STREQ(fault.what(), "messages[2].content: is empty; write something");
  EXPECT_EQ(fault.param(), "messages[2].content");
  EXPECT_EQ(fault.code(), "empty_content");
  EXPECT_TRUE(RequestError("n", "is 2").code().empty());
}

}  // namespace
}  // namespace calla
