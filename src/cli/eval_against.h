// The logits that a backend's are compared with.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "cli/eval_documents.h"
#include "model/backend.h"

namespace calla::cli {

class ReferenceLogits {
 public:
  ReferenceLogits() = default;
  virtual ~ReferenceLogits() = default;
  ReferenceLogits(const ReferenceLogits&) = delete;
  ReferenceLogits& operator=(const ReferenceLogits&) = delete;
  ReferenceLogits(ReferenceLogits&&) = delete;
  ReferenceLogits& operator=(ReferenceLogits&&) = delete;

  /// A window of a document begins, of whose first tokens, `prompt`, no logits are asked for.
  virtual void begin(std::size_t document, std::span<const Token> prompt) = 0;
  /// The logits after each of the window's next tokens.
  virtual void score(std::span<const Token> tokens, const LogitsVisitor& visit) = 0;
};

/// Those of a backend, which reads the same tokens in its slot 0.
std::unique_ptr<ReferenceLogits> logits_of_backend(std::unique_ptr<Backend> backend);

/// Those that other software has written: a safetensors file with `N.ids` [T] I32 and `N.logits`
/// [T, vocabulary] F32 for the documents N = 0, 1, ... Throws Error that names file and tensor when one is
/// missing, is not of this form or is not of the document's tokens, and when a document is longer than the
/// window, since these are the logits of whole documents.
std::unique_ptr<ReferenceLogits> logits_of_file(const std::filesystem::path& path,
                                                std::span<const Document> documents, int vocabulary,
                                                std::size_t window);

}  // namespace calla::cli
