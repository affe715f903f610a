// The bodies of requests, any bytes: the first chooses the endpoint. What is refused is refused with a
// RequestError of one line; what is accepted can be rendered and answered.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../tests/text/tiny_tokenizer.h"
#include "base/error.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/errors.h"
#include "server/fields.h"
#include "text/utf8.h"

namespace {

void require(bool holds, const char* what, const std::string& text) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, text.c_str());
  std::abort();
}

void read_chat(const calla::Json& body, const calla::Tokenizer& tokenizer) {
  const auto request = calla::server::chat_completion_request(body, tokenizer, {});
  for (const calla::ChatRequest& choice : calla::server::requests_of_choices(request)) {
    const calla::Prompt prompt = calla::write_prompt(choice.conversation, choice.options);
    tokenizer.encode(prompt);
    resolve(choice.sampling, {});
  }
}

void read_completion(const calla::Json& body, const calla::Tokenizer& tokenizer) {
  for (const calla::RawRequest& prompt : calla::server::completion_request(body, tokenizer).prompts) {
    for (const calla::Token token : prompt.prompt)
      require(token >= 0 && token < tokenizer.size(), "no such token", "");
  }
}

}  // namespace

// The name is libFuzzer's. NOLINTNEXTLINE(readability-identifier-naming)
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const calla::Tokenizer tokenizer =
      calla::Tokenizer::parse(calla::test::tiny_tokenizer().dump(), "tokenizer");
  if (size == 0) return 0;
  std::string input;
  for (std::size_t i = 1; i < size; ++i) input += static_cast<char>(data[i]);
  try {
    const calla::Json body = calla::server::object_from_body(input);
    data[0] % 2 == 0 ? read_chat(body, tokenizer) : read_completion(body, tokenizer);
  } catch (const calla::RequestError& fault) {
    const auto answer = calla::server::as_http_error(fault);
    const std::string text = calla::server::dump(calla::server::error_json(answer.body()));
    require(answer.status() == 400, "another status", text);
    require(calla::first_invalid_utf8(text) == text.size(), "no UTF-8", text);
    require(std::string(fault.what()).find('\n') == std::string::npos, "more than a line", fault.what());
  }
  return 0;
}
