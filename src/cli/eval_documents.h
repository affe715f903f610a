// Texts to evaluate, as tokens.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "base/token.h"
#include "text/tokenizer.h"

namespace calla::cli {

struct Document {
  std::string name;  // where it stands in its file: "line 12"
  std::vector<Token> tokens;
};

/// Reads a file by the end of its name:
///   .jsonl        a conversation a line: {"messages", "tools", "chat_template_kwargs"}, rendered whole, the
///                 assistant's replies included, as the model was trained on them
///   .json, .ids   such a conversation, an array of token ids, or an array of such arrays
///   .safetensors  ids as tensors, 0.ids, 1.ids, ...: [T] I32
///   anything else plain text, one document
/// Throws Error that names the file and the place when it is empty, is not of its form, has an id outside of
/// [0, vocabulary), or a document has fewer than two tokens: then there is nothing to predict.
std::vector<Document> read_documents(const std::filesystem::path& path, const Tokenizer& tokenizer,
                                     int vocabulary);

}  // namespace calla::cli
