#include "base/error.h"

namespace calla {
namespace {
std::string joined(std::string_view where, std::string_view problem, std::string_view advice) {
  std::string line;
  if (!where.empty()) line.append(where).append(": ");
  line.append(problem);
  if (!advice.empty()) line.append("; ").append(advice);
  return line;
}
}  // namespace

Error::Error(std::string_view where, std::string_view problem, std::string_view advice)
    : std::runtime_error(joined(where, problem, advice)) {}

RequestError::RequestError(std::string_view param, std::string_view problem, std::string_view advice,
                           std::string_view code)
    : Error(param, problem, advice), param_(param), code_(code) {}

}  // namespace calla
