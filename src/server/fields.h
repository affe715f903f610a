// The fields of a request, read leniently: absent and null are the same. A value of the wrong kind is a
// RequestError that names the field.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace calla::server {

class Fields {
 public:
  /// `prefix` stands before the names in messages: "stream_options.".
  explicit Fields(const Json& object, std::string prefix = {})
      : object_(&object), prefix_(std::move(prefix)) {}

  /// The value, or null where it is absent or JSON's null.
  const Json* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  std::optional<bool> boolean(std::string_view name) const;
  std::optional<float> number(std::string_view name) const;
  /// A whole number, written with a fraction of zeros or not, from `least` to `most`.
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most) const;
  std::optional<std::string> string(std::string_view name) const;
  /// A string, or an array of strings.
  std::vector<std::string> strings(std::string_view name) const;
  /// An object.
  std::optional<Fields> object(std::string_view name) const;

  [[noreturn]] void refuse(std::string_view name, std::string_view problem,
                           std::string_view advice = {}) const;

 private:
  const Json* object_;
  std::string prefix_;
};

/// Parses the body of a request, which must be an object. Throws RequestError.
Json object_from_body(std::string_view body);

}  // namespace calla::server
