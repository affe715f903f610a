// Fields of a JSON object, checked one by one, their faults collected.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/token.h"
#include "checkpoint/fault_list.h"

namespace calla {

enum class Presence { required, optional };

/// An object of a configuration and where it stands ("text_config."). A field that is null counts as absent.
/// Each fault reads "text_config.hidden_size: 4096, expected 2048".
class Fields {
 public:
  /// `object` may be null, for an object that is not there; then every field is absent.
  Fields(const Json* object, std::string prefix, FaultList& faults);

  /// The field's value, or null.
  const Json* find(std::string_view key) const;

  /// The field must equal `expected`, numbers to six digits where that is no whole number.
  void expect(std::string_view key, const Json& expected, Presence presence = Presence::required) const;

  /// The field's value if it is present and a number in [low, high]; anything else present is a fault.
  std::optional<double> number(std::string_view key, double low, double high) const;
  std::optional<int> integer(std::string_view key, int low, int high) const;
  std::optional<bool> boolean(std::string_view key) const;

  /// One id or a list of ids, each in [0, limit), without repetition; empty when absent.
  std::vector<Token> tokens(std::string_view key, int limit) const;

  /// The fields of the object under `key`; a value that is no object is a fault.
  Fields object(std::string_view key) const;

  void fault(std::string_view key, std::string_view expected) const;

 private:
  const Json* object_;
  std::string prefix_;
  FaultList& faults_;
};

}  // namespace calla
