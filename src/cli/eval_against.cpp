#include "cli/eval_against.h"

#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace calla::cli {
namespace {

class BackendLogits final : public ReferenceLogits {
 public:
  explicit BackendLogits(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  void begin(std::size_t, std::span<const Token> prompt) override {
    backend_->reset(0);
    if (!prompt.empty()) backend_->prefill(0, prompt, false);
  }
  void score(std::span<const Token> tokens, const LogitsVisitor& visit) override {
    backend_->score(0, tokens, visit);
  }

 private:
  std::unique_ptr<Backend> backend_;
};

class FileLogits final : public ReferenceLogits {
 public:
  FileLogits(const std::filesystem::path& path, std::span<const Document> documents, int vocabulary,
             std::size_t window)
      : file_(path), row_(static_cast<std::size_t>(vocabulary)) {
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const std::vector<Token>& tokens = documents[i].tokens;
      if (tokens.size() > window) {
        throw Error("--context",
                    fmt::format("{} cuts {} of {} tokens, and {} has the logits of whole documents", window,
                                documents[i].name, tokens.size(), path.string()));
      }
      require_ids(i, tokens);
      const std::string name = fmt::format("{}.logits", i);
      logits_.push_back(
          tensor(name, DType::f32, {static_cast<std::int64_t>(tokens.size()), vocabulary}).bytes);
    }
  }

  void begin(std::size_t document, std::span<const Token> prompt) override {
    rest_ = logits_[document].subspan(prompt.size() * row_.size() * sizeof(float));
  }
  void score(std::span<const Token> tokens, const LogitsVisitor& visit) override {
    const std::size_t bytes = row_.size() * sizeof(float);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::memcpy(row_.data(), rest_.data(), bytes);
      rest_ = rest_.subspan(bytes);
      visit(i, row_);
    }
  }

 private:
  const Tensor& tensor(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) const {
    const std::string where = fmt::format("{} {}", file_.path().string(), name);
    const auto found = file_.tensors().find(name);
    if (found == file_.tensors().end()) throw Error(where, "is missing");
    const Tensor& tensor = found->second;
    if (tensor.dtype != dtype || tensor.shape != shape) {
      throw Error(where, fmt::format("is {}, expected {}", describe(tensor.dtype, tensor.shape),
                                     describe(dtype, shape)));
    }
    return tensor;
  }

  void require_ids(std::size_t document, std::span<const Token> tokens) const {
    const std::string name = fmt::format("{}.ids", document);
    const Tensor& ids = tensor(name, DType::i32, {static_cast<std::int64_t>(tokens.size())});
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      Token id = 0;
      std::memcpy(&id, ids.bytes.data() + i * sizeof(id), sizeof(id));
      if (id != tokens[i]) {
        throw Error(fmt::format("{} {}", file_.path().string(), name),
                    fmt::format("has {} at index {}, where the document has {}", id, i, tokens[i]));
      }
    }
  }

  SafetensorsFile file_;
  std::vector<std::span<const std::byte>> logits_;  // of each document
  std::span<const std::byte> rest_;                 // of the one that is being read
  std::vector<float> row_;
};

}  // namespace

std::unique_ptr<ReferenceLogits> logits_of_backend(std::unique_ptr<Backend> backend) {
  return std::make_unique<BackendLogits>(std::move(backend));
}

std::unique_ptr<ReferenceLogits> logits_of_file(const std::filesystem::path& path,
                                                std::span<const Document> documents, int vocabulary,
                                                std::size_t window) {
  return std::make_unique<FileLogits>(path, documents, vocabulary, window);
}

}  // namespace calla::cli
