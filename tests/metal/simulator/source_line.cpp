#include "metal/simulator/source_line.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <link.h>

namespace calla::metal::simulation {
namespace {

/// The lines that binutils' addr2line finds: the innermost inlined function's first, the caller's last.
std::string find(std::uintptr_t address) {
  std::uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* program, std::size_t, void* result) {
        *static_cast<std::uintptr_t*>(result) = program->dlpi_addr;
        return 1;  // the first is the program itself
      },
      &base);
  // The shell's own /proc/self is not ours.
  std::error_code fault;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", fault).string();
  const std::string command = fmt::format("addr2line -i -e '{}' {:#x} 2>/dev/null", program, address - base);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> lines(popen(command.c_str(), "r"), pclose);
  if (lines == nullptr) return {};
  std::string found;
  for (std::array<char, 1024> line{}; std::fgets(line.data(), line.size(), lines.get()) != nullptr;) {
    std::string_view text(line.data());
    text = text.substr(0, text.find_first_of(" \n"));
    // Not the shim's functions but what called them; from the room's name on.
    if (text.find("/shim/") != std::string_view::npos || text.starts_with("?")) continue;
    if (const std::size_t room = text.rfind("metal/"); room != std::string_view::npos) {
      found = text.substr(room);
      break;
    }
  }
  return found;
}

}  // namespace

std::string source_line(const void* return_address) {
  static std::map<const void*, std::string> known;
  const auto [entry, is_new] = known.try_emplace(return_address);
  if (is_new) entry->second = find(reinterpret_cast<std::uintptr_t>(return_address) - 1);
  return entry->second;
}

}  // namespace calla::metal::simulation
