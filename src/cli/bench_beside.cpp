#include "cli/bench_beside.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"

namespace calla::cli {
namespace {

constexpr double longest_context = 1 << 30;

std::vector<std::string> cells(std::string_view line) {
  std::vector<std::string> result(1);
  for (const char c : line) {
    if (c == ',') {
      result.emplace_back();
    } else if (c != ' ' && c != '\r') {
      result.back() += c;
    }
  }
  return result;
}

std::optional<std::size_t> column(const std::vector<std::string>& head, std::string_view name) {
  const auto found = std::find(head.begin(), head.end(), name);
  if (found == head.end()) return std::nullopt;
  return static_cast<std::size_t>(found - head.begin());
}

/// Nothing where the cell is empty or not there.
std::optional<double> number(const std::vector<std::string>& row, std::optional<std::size_t> at,
                             const std::string& where) {
  if (!at || *at >= row.size() || row[*at].empty()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(row[*at].c_str(), &end);
  if (*end != '\0' || !std::isfinite(value) || value <= 0)
    throw Error(where, fmt::format("\"{}\" is not a number above 0", row[*at]));
  return value;
}

}  // namespace

OtherSpeeds read_other_speeds(const std::filesystem::path& path) {
  const std::string file = path.string();
  const std::string text = read_text_file(path);
  OtherSpeeds speeds{.name = path.stem().string(), .prefill = {}, .decode = {}};
  std::vector<std::string> head;
  std::string_view rest = text;
  for (int line = 1; !rest.empty(); ++line) {
    const std::string_view content = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), content.size() + 1));
    const std::vector<std::string> row = cells(content);
    if (head.empty()) {
      head = row;
      if (!column(head, "context")) throw Error(file, "has no column \"context\" in its first line");
      continue;
    }
    if (row.size() == 1 && row.front().empty()) continue;
    const std::string where = fmt::format("{} line {}", file, line);
    const auto context = number(row, column(head, "context"), where);
    if (!context) throw Error(where, "has no context");
    if (*context > longest_context || *context != std::floor(*context))
      throw Error(where, fmt::format("{:g} is not a length of a context", *context));
    const auto all_slots = column(head, "decode_tokens_per_second_all_slots");
    const auto decode = number(row, all_slots ? all_slots : column(head, "decode_tokens_per_second"), where);
    const auto prefill = number(row, column(head, "prefill_tokens_per_second"), where);
    if (prefill) speeds.prefill.push_back({static_cast<int>(*context), *prefill});
    if (decode) speeds.decode.push_back({static_cast<int>(*context), *decode});
  }
  if (speeds.prefill.empty() && speeds.decode.empty()) {
    throw Error(file, "has no speeds",
                "give the columns context, prefill_tokens_per_second and decode_tokens_per_second");
  }
  for (std::vector<SpeedPoint>* points : {&speeds.prefill, &speeds.decode}) {
    std::sort(points->begin(), points->end(),
              [](const SpeedPoint& a, const SpeedPoint& b) { return a.context < b.context; });
  }
  return speeds;
}

}  // namespace calla::cli
