// GET /: the web page, which is part of the program.
#pragma once
#include "server/exchange.h"

namespace calla::server {

HttpResponse page();

}  // namespace calla::server
