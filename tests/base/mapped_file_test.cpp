#include "base/mapped_file.h"

#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/support.h"

namespace calla {
namespace {

std::string_view text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string fault_of(const std::filesystem::path& path) {
  try {
    const MappedFile file(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MappedFile, ShowsTheBytes) {
  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "f", std::string_view("a\0b", 3));
  EXPECT_EQ(text(MappedFile(folder.path() / "f")), std::string_view("a\0b", 3));
}

TEST(MappedFile, OfAnEmptyFileIsEmpty) {
  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "f", "");
  EXPECT_TRUE(MappedFile(folder.path() / "f").bytes().empty());
}

TEST(MappedFile, MovesWithItsBytes) {
  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "f", "first");
  test::write_file(folder.path() / "g", "second");
  MappedFile first(folder.path() / "f");
  MappedFile moved(std::move(first));
  EXPECT_EQ(text(moved), "first");
  moved = MappedFile(folder.path() / "g");
  EXPECT_EQ(text(moved), "second");
}

TEST(MappedFile, TellsWhyItCannotOpen) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path().string();
  EXPECT_EQ(fault_of(path + "/none"), path + "/none: cannot be opened: No such file or directory");
  EXPECT_EQ(fault_of(path), path + ": is not a regular file");
}

}  // namespace
}  // namespace calla
