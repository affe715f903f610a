// Guards against web pages whose name was made to resolve to this machine (DNS rebinding).
#pragma once
#include <string_view>

namespace calla::server {

/// Whether a Host header names this machine in a way that no page of another site can have: an address,
/// localhost, or a name that public DNS does not resolve (.localhost, .local, .internal). Empty is allowed:
/// no browser sends that.
bool is_local_host(std::string_view host);

}  // namespace calla::server
