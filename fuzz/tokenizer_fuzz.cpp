// Any bytes as a tokenizer.json: it is refused with an Error, or it encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

// The fuzzer chose the name.
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using calla::Tokenizer;
  constexpr std::string_view text =
      "ab ab 12 \xC3\xA9 e\xCC\x81  \n don't <think> <|end|>x \xF0\x9F\x98\x80 "
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabcd";
  try {
    const Tokenizer tokenizer = Tokenizer::parse({reinterpret_cast<const char*>(data), size},
                                                 "tokenizer.json");  // NOLINT(*-reinterpret-cast)
    const std::vector<calla::TextRange> literal{{3, 30}};
    for (const auto& tokens :
         {tokenizer.encode(text, Tokenizer::ControlTokens::recognised),
          tokenizer.encode(text, Tokenizer::ControlTokens::as_text), tokenizer.encode(text, literal)}) {
      if (tokenizer.decode(tokens).empty()) __builtin_trap();
    }
  } catch (const calla::Error&) {  // the only answer to a file that is refused
  }
  return 0;
}
