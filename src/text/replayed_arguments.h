// The arguments of earlier tool calls, as clients send them back.
#pragma once
#include "base/json.h"

namespace calla {

/// Arguments in whatever form they were sent, as an object: an object as it is; JSON text parsed; null, "",
/// [] and their text as no arguments. Text that was cut off is closed, after its last whole argument if need
/// be. Anything else becomes one argument named "arguments", because a conversation must be able to go on
/// after a call that was broken. Never throws for any value that passed json_nests_too_deeply.
Json replayed_arguments(const Json& sent);

}  // namespace calla
