#include "checkpoint/fields.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

namespace calla {
namespace {
bool is_same(const Json& found, const Json& expected) {
  if (!expected.is_number_float()) return !found.is_number_float() && found == expected;
  if (!found.is_number()) return false;
  // Some writers print the nearest float32, 9.999999974752427e-07.
  const auto wanted = expected.get<double>();
  return std::abs(found.get<double>() - wanted) <= 1e-6 * std::abs(wanted);
}

std::optional<std::int64_t> whole(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  // Beyond int64 an unsigned value would wrap.
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX})
    return std::nullopt;
  return value.get<std::int64_t>();
}
}  // namespace

Fields::Fields(const Json* object, std::string prefix, FaultList& faults)
    : object_(object), prefix_(std::move(prefix)), faults_(faults) {}

const Json* Fields::find(std::string_view key) const {
  if (object_ == nullptr) return nullptr;
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void Fields::fault(std::string_view key, std::string_view expected) const {
  const Json* value = find(key);
  faults_.add(fmt::format("{}{}: {}, expected {}", prefix_, key, value != nullptr ? brief(*value) : "missing",
                          expected));
}

void Fields::expect(std::string_view key, const Json& expected, Presence presence) const {
  const Json* value = find(key);
  if (value == nullptr && presence == Presence::optional) return;
  if (value == nullptr || !is_same(*value, expected)) fault(key, brief(expected));
}

std::optional<double> Fields::number(std::string_view key, double low, double high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (number >= low && number <= high) return number;
  }
  fault(key, fmt::format("a number from {} to {}", low, high));
  return std::nullopt;
}

std::optional<int> Fields::integer(std::string_view key, int low, int high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const std::optional<std::int64_t> found = whole(*value); found && *found >= low && *found <= high) {
    return static_cast<int>(*found);
  }
  fault(key, fmt::format("a whole number from {} to {}", low, high));
  return std::nullopt;
}

std::optional<bool> Fields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fault(key, "true or false");
  return std::nullopt;
}

std::vector<Token> Fields::tokens(std::string_view key, int limit) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<Token> tokens;
  for (const Json& id : list) {
    const std::optional<std::int64_t> found = whole(id);
    if (!found || *found < 0 || *found >= limit) {
      fault(key, fmt::format("a token id below {}, or a list of them", limit));
      return {};
    }
    const auto token = static_cast<Token>(*found);
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  return tokens;
}

Fields Fields::object(std::string_view key) const {
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) {
    fault(key, "an object");
    value = nullptr;
  }
  return {value, fmt::format("{}{}.", prefix_, key), faults_};
}

}  // namespace calla
