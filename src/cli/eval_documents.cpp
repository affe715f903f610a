#include "cli/eval_documents.h"

#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "cli/conversation_file.h"
#include "text/prompt.h"

namespace calla::cli {
namespace {

std::vector<Token> conversation_tokens(const Json& json, const Tokenizer& tokenizer, std::string_view where) {
  ConversationFile file = conversation_file_from_json(json, where);
  file.options.add_generation_prompt = false;
  try {
    return tokenizer.encode(write_prompt(file.conversation, file.options));
  } catch (const RequestError& fault) {
    throw Error(where, fault.what());
  }
}

std::vector<Token> ids(const Json& array, int vocabulary, std::string_view where) {
  std::vector<Token> tokens;
  for (const Json& id : array) {
    if (!id.is_number_integer() || id < 0 || id >= vocabulary) {
      throw Error(where, fmt::format("{} at index {} is not a token id from 0 to {}", brief(id),
                                     tokens.size(), vocabulary - 1));
    }
    tokens.push_back(id.get<Token>());
  }
  return tokens;
}

std::vector<Document> conversations(std::string_view text, const Tokenizer& tokenizer,
                                    const std::string& file) {
  std::vector<Document> documents;
  for (int line = 1; !text.empty(); ++line) {
    const std::string_view content = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), content.size() + 1));
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::string name = fmt::format("line {}", line);
    const std::string where = fmt::format("{} {}", file, name);
    std::vector<Token> tokens = conversation_tokens(parse_json(content, where), tokenizer, where);
    documents.push_back({std::move(name), std::move(tokens)});
  }
  return documents;
}

std::vector<Document> json_documents(const Json& json, const Tokenizer& tokenizer, int vocabulary,
                                     const std::string& file) {
  if (json.is_object()) return {{"conversation", conversation_tokens(json, tokenizer, file)}};
  if (!json.is_array()) {
    throw Error(file, "holds neither token ids nor a conversation",
                "give an array of ids, an array of such arrays, or {\"messages\": [...]}");
  }
  if (json.empty() || !json.front().is_array()) return {{"document 1", ids(json, vocabulary, file)}};
  std::vector<Document> documents;
  for (const Json& array : json) {
    std::string name = fmt::format("document {}", documents.size() + 1);
    const std::string where = fmt::format("{} {}", file, name);
    if (!array.is_array()) throw Error(where, fmt::format("is {}, not an array of token ids", brief(array)));
    std::vector<Token> tokens = ids(array, vocabulary, where);
    documents.push_back({std::move(name), std::move(tokens)});
  }
  return documents;
}

std::vector<Document> tensor_documents(const std::filesystem::path& path, int vocabulary) {
  const SafetensorsFile file(path);
  std::vector<Document> documents;
  for (;;) {
    const std::string name = fmt::format("{}.ids", documents.size());
    const auto found = file.tensors().find(name);
    if (found == file.tensors().end()) break;
    const std::string where = fmt::format("{} {}", path.string(), name);
    const Tensor& tensor = found->second;
    if (tensor.dtype != DType::i32 || tensor.shape.size() != 1)
      throw Error(where, fmt::format("is {}, expected I32 [tokens]", describe(tensor.dtype, tensor.shape)));
    std::vector<Token> tokens(tensor.bytes.size() / sizeof(Token));
    if (!tokens.empty()) std::memcpy(tokens.data(), tensor.bytes.data(), tensor.bytes.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocabulary) {
        throw Error(where, fmt::format("{} at index {} is not a token id from 0 to {}", tokens[i], i,
                                       vocabulary - 1));
      }
    }
    documents.push_back({name, std::move(tokens)});
  }
  if (documents.empty()) throw Error(path.string(), "holds no token ids: there is no tensor 0.ids");
  return documents;
}

void require_something_to_predict(std::span<const Document> documents, const std::string& file) {
  for (const Document& document : documents) {
    if (document.tokens.size() >= 2) continue;
    throw Error(fmt::format("{} {}", file, document.name),
                fmt::format("has {} token{}: there is nothing to predict", document.tokens.size(),
                            document.tokens.size() == 1 ? "" : "s"));
  }
}

std::vector<Document> text_documents(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                     int vocabulary) {
  const std::string file = path.string();
  const std::string text = read_text_file(path);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) throw Error(file, "is empty");
  if (path.extension() == ".jsonl") return conversations(text, tokenizer, file);
  if (path.extension() == ".json" || path.extension() == ".ids")
    return json_documents(parse_json(text, file), tokenizer, vocabulary, file);
  try {
    return {{"text", tokenizer.encode(text, Tokenizer::ControlTokens::as_text)}};
  } catch (const Error& fault) {
    throw Error(file, fault.what());
  }
}

}  // namespace

std::vector<Document> read_documents(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                     int vocabulary) {
  std::vector<Document> documents = path.extension() == ".safetensors"
                                        ? tensor_documents(path, vocabulary)
                                        : text_documents(path, tokenizer, vocabulary);
  require_something_to_predict(documents, path.string());
  return documents;
}

}  // namespace calla::cli
