// Faults that a person can act on.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

namespace calla {

/// A fault of loading, configuration or input: where it happened (a file, tensor, field or flag), what
/// happened, and what to do about it. what() joins them on one line, "where: problem; advice", without the
/// parts that are empty.
class Error : public std::runtime_error {
 public:
  Error(std::string_view where, std::string_view problem, std::string_view advice = {});
};

/// A request that cannot be served as it stands. `param` names the field in the sender's terms
/// ("messages[2].content"), `code` is a machine-readable reason ("context_length_exceeded") or empty. An API
/// answers 400 with both.
class RequestError : public Error {
 public:
  RequestError(std::string_view param, std::string_view problem, std::string_view advice = {},
               std::string_view code = {});
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  std::string param_;
  std::string code_;
};

}  // namespace calla
