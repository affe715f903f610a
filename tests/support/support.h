// What tests of every room share: where the data lies, temporary folders, reading a file whole.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace calla::test {

/// A file or folder of the project.
std::filesystem::path source(std::string_view name);
/// The committed demonstration checkpoint.
std::filesystem::path demo_model();
/// A file or folder of tests/data.
std::filesystem::path data(std::string_view name);
/// The built `calla` program.
std::filesystem::path calla_program();
/// The folder of golden data (CALLA_GOLDENS), or nothing.
std::optional<std::filesystem::path> goldens();
/// The folder with the real model's small files (CALLA_QWEN), or nothing.
std::optional<std::filesystem::path> qwen();

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// What the Error says that an action throws, or "no error".
std::string message_of(const std::function<void()>& action);

/// The unpacked form of an .xz file of CALLA_QWEN, made once in the build folder with xz.
std::filesystem::path unpacked(const std::filesystem::path& xz_file);

/// A fresh folder that is removed with its contents at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  TemporaryFolder(TemporaryFolder&&) = delete;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace calla::test

/// Skips the test where the golden data is not there.
#define CALLA_REQUIRE(optional_path, variable) \
  if (!(optional_path)) GTEST_SKIP() << (variable) << " is not set: golden data not compared"
