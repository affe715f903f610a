// Any bytes are a safetensors file or an Error, and every tensor lies within them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  try {
    for (const auto& [name, tensor] : calla::parse_safetensors(file, "fuzz")) {
      const bool inside = tensor.bytes.data() >= file.data() &&
                          tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size();
      if (!inside) std::abort();
    }
  } catch (const calla::Error&) {  // refused, which is an answer
  }
  return 0;
}
