#include "checkpoint/fault_list.h"

#include <utility>

#include <fmt/ranges.h>

#include "base/error.h"

namespace calla {

void FaultList::add(std::string fault) {
  if (count_ < told) first_.push_back(std::move(fault));
  ++count_;
}

std::string FaultList::joined() const {
  std::string line = fmt::format("{}", fmt::join(first_, "; "));
  if (count_ > told) line += fmt::format("; and {} more", count_ - told);
  return line;
}

void FaultList::raise(std::string_view where, std::string_view prefix, std::string_view advice) const {
  if (!empty()) throw Error(where, fmt::format("{} {}", prefix, joined()), advice);
}

}  // namespace calla
