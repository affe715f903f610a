#include "program.h"

#include <cstdlib>

#include <sys/wait.h>

#include "support/support.h"

namespace calla::test {
namespace {

std::string quoted(const std::string& argument) {
  std::string result = "'";
  for (const char c : argument) c == '\'' ? result += "'\\''" : result += c;
  return result + "'";
}

}  // namespace

ProgramResult run_calla(const std::vector<std::string>& arguments, std::string_view input) {
  const TemporaryFolder folder;
  write_file(folder.path() / "in", input);
  std::string command = "env -u CALLA_MODEL " + quoted(calla_program().string());
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  for (const auto& [redirection, name] : {std::pair{" <", "in"}, {" >", "out"}, {" 2>", "err"}}) {
    command += redirection + quoted((folder.path() / name).string());
  }
  const int status = std::system(command.c_str());  // NOLINT(cert-env33-c, concurrency-mt-unsafe)
  ProgramResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(folder.path() / "out");
  result.err = read_file(folder.path() / "err");
  // A build for a GPU says so where there is none; what the program has to say comes behind it.
  constexpr std::string_view fallback = "; running on the CPU";
  const std::size_t line = result.err.find('\n');
  if (line != std::string::npos && std::string_view(result.err).substr(0, line).ends_with(fallback))
    result.err.erase(0, line + 1);
  return result;
}

}  // namespace calla::test
