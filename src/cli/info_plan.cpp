#include "cli/info_plan.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/terminal.h"
#include "metal/decode_plan.h"
#include "model/memory_plan.h"

namespace calla::cli {
namespace {

void print_head(std::string_view title) {
  const Style style(STDOUT_FILENO);
  put(STDOUT_FILENO, fmt::format("{}{}{}\n", style.bold, title, style.reset));
}

std::string bytes_text(double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }

}  // namespace

void print_decode_plan(const Shape& shape, int context) {
  std::vector<metal::DecodePlan> plans;
  for (const int length : {256, 4096, 32768, 131072}) {
    if (length <= context) plans.push_back(metal::plan_decode(shape, length));
  }
  if (plans.empty()) plans.push_back(metal::plan_decode(shape, context));

  print_head(fmt::format("A token of {}, one conversation", name(shape)));
  put(STDOUT_FILENO, fmt::format("  {:>9} {:>11} {:>7} {:>13} {:>10}\n", "context", "dispatches", "levels",
                                 "threadgroups", "bytes"));
  for (const metal::DecodePlan& plan : plans) {
    put(STDOUT_FILENO, fmt::format("  {:>9} {:>11} {:>7} {:>13} {:>10}\n", plan.context, plan.dispatches,
                                   plan.levels, plan.threadgroups, bytes_text(plan.bytes)));
  }

  print_head(fmt::format("Its kernels at {} tokens", plans.front().context));
  put(STDOUT_FILENO,
      fmt::format("  {:<18} {:>11} {:>13} {:>10}\n", "kernel", "dispatches", "threadgroups", "bytes"));
  for (const metal::KernelPlan& kernel : plans.front().kernels) {
    put(STDOUT_FILENO, fmt::format("  {:<18} {:>11} {:>13} {:>10}\n", kernel.kernel, kernel.dispatches,
                                   kernel.threadgroups, bytes_text(kernel.bytes)));
  }

  print_head("What that implies, in tokens a second");
  put(STDOUT_FILENO,
      "  A model and not a measurement: bytes at the bandwidth that others have reached on the chip,\n"
      "  and 4 us for a level that streams from memory, 2.5 us for another.\n");
  std::string head = fmt::format("  {:<10}", "context");
  for (const metal::DecodePlan& plan : plans) head += fmt::format(" {:>7}", plan.context);
  put(STDOUT_FILENO, head + "\n");
  for (const metal::Chip& chip : metal::chips()) {
    std::string row = fmt::format("  {:<10}", chip.name);
    for (const metal::DecodePlan& plan : plans)
      row += fmt::format(" {:>7.0f}", 1 / metal::predicted_seconds(plan, chip));
    put(STDOUT_FILENO, row + "\n");
  }
}

}  // namespace calla::cli
