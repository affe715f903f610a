#include "server/fields.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace calla::server {

const Json* Fields::find(std::string_view name) const {
  const auto found = object_->find(std::string(name));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void Fields::refuse(std::string_view name, std::string_view problem, std::string_view advice) const {
  throw RequestError(prefix_ + std::string(name), problem, advice);
}

std::optional<bool> Fields::boolean(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "must be true or false");
  return value->get<bool>();
}

std::optional<float> Fields::number(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(name, "must be a number");
  return static_cast<float>(value->get<double>());
}

std::optional<std::int64_t> Fields::integer(std::string_view name, std::int64_t least,
                                            std::int64_t most) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto check = [&](bool fits) {
    if (!fits) refuse(name, fmt::format("must be a whole number from {} to {}", least, most));
  };
  check(value->is_number());
  if (value->is_number_float()) {
    const double number = value->get<double>();
    check(std::trunc(number) == number && number >= static_cast<double>(least) &&
          number <= static_cast<double>(most) && std::abs(number) < 9007199254740992.0);
    return static_cast<std::int64_t>(number);
  }
  check(!value->is_number_unsigned() || value->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  const auto number = value->get<std::int64_t>();
  check(number >= least && number <= most);
  return number;
}

std::optional<std::string> Fields::string(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "must be a string");
  return value->get<std::string>();
}

std::vector<std::string> Fields::strings(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) refuse(name, "must be a string or an array of strings");
  std::vector<std::string> result;
  for (std::size_t i = 0; i < value->size(); ++i) {
    if (!(*value)[i].is_string()) refuse(fmt::format("{}[{}]", name, i), "must be a string");
    result.push_back((*value)[i].get<std::string>());
  }
  return result;
}

std::optional<Fields> Fields::object(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(name, "must be an object");
  return Fields(*value, prefix_ + std::string(name) + ".");
}

Json object_from_body(std::string_view body) {
  Json json;
  try {
    json = parse_json(body, "the body");
  } catch (const RequestError&) {
    throw;
  } catch (const Error& fault) {
    throw RequestError("", fault.what());
  }
  if (!json.is_object()) throw RequestError("", "the body must be a JSON object");
  return json;
}

}  // namespace calla::server
