#include "support/support.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <unistd.h>

#include "base/error.h"

namespace calla::test {
namespace fs = std::filesystem;

namespace {
std::optional<fs::path> folder_from_environment(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr || *value == '\0') return std::nullopt;
  if (!fs::is_directory(value))
    throw std::runtime_error(std::string(variable) + " names no folder: " + value);
  return fs::path(value);
}
}  // namespace

fs::path source(std::string_view name) { return fs::path(CALLA_SOURCE_DIR) / name; }
fs::path demo_model() { return source("models/demo"); }
fs::path data(std::string_view name) { return source("tests/data") / name; }
fs::path calla_program() { return fs::path(CALLA_BINARY_DIR) / "calla"; }
std::optional<fs::path> goldens() { return folder_from_environment("CALLA_GOLDENS"); }
std::optional<fs::path> qwen() { return folder_from_environment("CALLA_QWEN"); }

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

fs::path unpacked(const fs::path& xz_file) {
  const fs::path folder = fs::path(CALLA_BINARY_DIR) / "unpacked" / xz_file.parent_path().filename();
  const fs::path target = folder / xz_file.stem();
  if (fs::exists(target)) return target;
  fs::create_directories(folder);
  // Unpack beside the target and rename, so that tests that run at once never see half a file.
  const fs::path partial = target.string() + "." + std::to_string(::getpid());
  const std::string command = "xz -dc '" + xz_file.string() + "' > '" + partial.string() + "'";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);  // NOLINT
  fs::rename(partial, target);
  return target;
}

TemporaryFolder::TemporaryFolder() {
  // Made under a name that nothing has: a process's number may be that of one that left its folders behind.
  std::string name = fs::temp_directory_path() / "calla-test-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace calla::test
