// What the simulator's C++ takes in silence and Metal's compiler refuses, or understands otherwise.
#include <array>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/support.h"

namespace calla::test {
namespace {

struct Rule {
  const char* pattern;
  const char* reason;
  const char* wrong;  // an example
};

// Of a line of code without comments. Declarations of the program's scope begin in the first column.
constexpr std::array rules = {
    Rule{R"(\bthreadgroup\s+\w+\s+\w+\s*\[)",
         "threadgroup memory is TG_ARRAY(type, name, count): this would be every thread's own",
         "  threadgroup float x[32];"},
    Rule{R"(\bfunction_constant\b)", "function constants have no value here: variants are templates",
         "constant bool wide [[function_constant(0)]];"},
    Rule{R"(\bhost_name\b)", "INSTANTIATE names a kernel that is a template",
         "template [[host_name(\"k\")]] kernel void k<1>(device float* x);"},
    Rule{R"((^|[^\w.])(\d+\.\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|\d+[eE][+-]?\d+)([^\w.]|$))",
         "Metal has no double: write 1.0f", "  x *= 0.5;"},
    Rule{R"((^|[=(,\s])\[[&=]?[\w&, ]*\]\s*(\([^)]*\))?\s*(->\s*\w+\s*)?\{)",
         "Metal has no lambdas before 3.2", "  auto square = [](float x) { return x * x; };"},
    Rule{R"(^\s+static\s[^(]*[=;])", "Metal has no static variables in functions",
         "  static uint calls = 0;"},
    Rule{
        R"(^(?!using|enum|struct|class|template|namespace|typedef|constant)((static|inline|const|constexpr|thread)\s+)*)"
        R"((?!constant)[a-z_]\w*(<[^>]*>)?\s+\w+(\[[^\]]*\])*\s*[=;{])",
        "variables of the program's scope are constant", "constexpr uint width = 4;"},
    Rule{R"(\bconst\s+constant\b)", "constant says const already", "  const constant float* x = y;"},
    Rule{R"(\b(isnan|isinf|INFINITY|NAN)\b)",
         "the arithmetic knows neither infinity nor NaN: mask with -1e30f", "  float peak = -INFINITY;"},
    Rule{R"(\b(std|double|virtual|new|delete|throw|try|goto|thread_local|dynamic_cast)\b)", "Metal has none",
         "  return std::min(x, y);"},
};

/// Without comments, which may say anything, and line by line as before.
std::string code_of(std::string text) {
  static const std::regex line_comment("//[^\n]*");
  return std::regex_replace(text, line_comment, "");
}

std::vector<std::string> faults(const std::string& text) {
  static const std::vector<std::regex> patterns = [] {
    std::vector<std::regex> result;
    for (const Rule& rule : rules) result.emplace_back(rule.pattern);
    return result;
  }();
  // Pointers and references cling to their type; products have a space before the sign.
  static const std::regex pointer(R"((\b(device|threadgroup|thread|constant)\s+((const|volatile)\s+)*)?)"
                                  R"(\b[A-Za-z_]\w*(<[^<>;()]*>)?[*&]+[\s>),])");
  std::vector<std::string> found;
  std::istringstream lines(code_of(text));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      if (std::regex_search(line, patterns[i]))
        found.push_back(fmt::format("{}: {}: {}", number, rules[i].reason, line));
    }
    for (std::sregex_iterator match(line.begin(), line.end(), pointer); match != std::sregex_iterator();
         ++match) {
      if (!(*match)[1].matched)
        found.push_back(fmt::format("{}: a pointer or reference without its memory: {}", number, line));
    }
  }
  return found;
}

/// A kernel's places in the grid and its extents are all vectors of one size or all scalars. Gives the
/// parameters that break this.
std::vector<std::string> mixed_places(const std::string& text) {
  static const std::regex place(
      R"((u?int|u?short)([23]?)\s+\w+\s*\[\[)"
      R"((threads?|threadgroups?)_(position_in_grid|position_in_threadgroup|per_grid|per_threadgroup)\]\])");
  const std::string code = code_of(text);
  std::vector<std::string> found;
  for (std::size_t begin = code.find("kernel void"); begin != std::string::npos;) {
    const std::size_t end = code.find('{', begin);
    const std::string signature = code.substr(begin, end - begin);
    const std::sregex_iterator first(signature.begin(), signature.end(), place);
    for (std::sregex_iterator other = first; other != std::sregex_iterator(); ++other) {
      if ((*other)[2] != (*first)[2])
        found.push_back(fmt::format("{} beside {}", other->str(), first->str()));
    }
    begin = code.find("kernel void", begin + 1);
  }
  return found;
}

TEST(KernelSpelling, IsMetals) {
  for (const auto& entry : std::filesystem::directory_iterator(source("src/metal/kernels"))) {
    if (entry.path().extension() != ".metal" && entry.path().extension() != ".h") continue;
    for (const std::string& fault : faults(read_file(entry.path())))
      ADD_FAILURE() << entry.path().filename().string() << ':' << fault;
    EXPECT_EQ(mixed_places(read_file(entry.path())), std::vector<std::string>()) << entry.path();
  }
}

TEST(KernelSpelling, EachFaultIsSeen) {
  for (const Rule& rule : rules) {
    const std::vector<std::string> found = faults(rule.wrong);
    ASSERT_FALSE(found.empty()) << rule.wrong;
    EXPECT_NE(found.front().find(rule.reason), std::string::npos) << found.front();
  }
  EXPECT_EQ(faults("inline float first(const float* x) { return x[0]; }").size(), 1U);
  EXPECT_EQ(faults("  thread float4& sum = sums[0], float& last = sums[1];").size(), 1U);
}

TEST(KernelSpelling, PlacesInTheGridAreOfOneSize) {
  EXPECT_EQ(
      mixed_places(
          "kernel void k(uint at [[thread_position_in_grid]],\n"
          "              uint3 groups [[threadgroups_per_grid]]) {}\n"
          "kernel void l(uint3 at [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],\n"
          "              uint3 groups [[threadgroups_per_grid]]) {}")
          .size(),
      1U);
}

TEST(KernelSpelling, WhatIsRightPasses) {
  const std::string right = R"(
constant float scale = 0.5f;  // not 0.5
enum : uint { width = 4 };
struct Place {
  device const float* values;
  uint count[4];
};
template <uint N>
inline float sum(threadgroup const float* x, thread Place& place, constant Arguments& args) {
  const float y = x[1] * 1e-6f + float(0x1fU) * place.values[3 * N];
  float4 z[2] = {float4(0.0f), ((device const float4*)place.values)[0]};
  return z[0].x * y;
}
kernel void k(device float* x [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  TG_ARRAY(float, shared, 32);
}
INSTANTIATE("k_1", k<1>)
)";
  EXPECT_EQ(faults(right), std::vector<std::string>());
}

}  // namespace
}  // namespace calla::test
