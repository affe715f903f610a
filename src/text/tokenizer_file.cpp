#include "text/tokenizer_file.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace calla {
namespace {
using Tree = nlohmann::json;

std::string shown(const Tree& value) {
  constexpr std::size_t longest = 100;
  const std::string text = value.dump();
  return text.size() <= longest ? text : mend_utf8(text.substr(0, longest)) + "...";
}

// A value of the file and its place in it.
class Field {
 public:
  Field(const Tree& value, std::string_view file, std::string path)
      : value_(&value), file_(file), path_(std::move(path)) {}

  bool has(const char* name) const { return value_->is_object() && value_->contains(name); }

  Field operator[](const char* name) const {
    const std::string path = path_.empty() ? name : fmt::format("{}.{}", path_, name);
    if (!has(name)) throw Error(field_of(file_, path), "is missing");
    return {value_->at(name), file_, path};
  }

  std::vector<Field> elements() const {
    if (!value_->is_array()) fail("an array");
    std::vector<Field> fields;
    for (const Tree& element : *value_)
      fields.emplace_back(element, file_, fmt::format("{}[{}]", path_, fields.size()));
    return fields;
  }

  bool is_null() const { return value_->is_null(); }

  void expect(const Tree& wanted) const {
    if (*value_ != wanted) fail(wanted.dump());
  }

  bool as_bool() const {
    if (!value_->is_boolean()) fail("true or false");
    return value_->get<bool>();
  }

  std::string as_text() const {
    if (!value_->is_string() || value_->get_ref<const std::string&>().empty())
      fail("a text that is not empty");
    return value_->get<std::string>();
  }

  Token as_id() const {
    if (!value_->is_number_unsigned() || value_->get<std::uint64_t>() >= Vocabulary::id_limit) {
      fail(fmt::format("a whole number below {}", Vocabulary::id_limit));
    }
    return value_->get<Token>();
  }

  [[noreturn]] void fail(const std::string& wanted) const {
    throw Error(field_of(file_, path_), "is " + shown(*value_), "expected " + wanted);
  }

 private:
  const Tree* value_;
  std::string_view file_;
  std::string path_;
};

// A field that may be absent or null, or have the one value that changes nothing.
void expect_unused(const Field& object, const char* name, const Tree& harmless) {
  if (!object.has(name) || object[name].is_null()) return;
  object[name].expect(harmless);
}

std::string read_split_regex(const Field& pre_tokenizer) {
  pre_tokenizer["type"].expect("Sequence");
  const Field list = pre_tokenizer["pretokenizers"];
  const std::vector<Field> steps = list.elements();
  if (steps.size() != 2) list.fail("Split and ByteLevel");

  const Field& split = steps[0];
  split["type"].expect("Split");
  split["behavior"].expect("Isolated");
  split["invert"].expect(false);

  const Field& byte_level = steps[1];
  byte_level["type"].expect("ByteLevel");
  byte_level["add_prefix_space"].expect(false);
  byte_level["use_regex"].expect(false);

  return split["pattern"]["Regex"].as_text();
}

void check_model(const Field& model) {
  model["type"].expect("BPE");
  expect_unused(model, "dropout", 0.0);
  expect_unused(model, "unk_token", nullptr);
  expect_unused(model, "continuing_subword_prefix", "");
  expect_unused(model, "end_of_word_suffix", "");
  expect_unused(model, "byte_fallback", false);
  expect_unused(model, "ignore_merges", false);
}

AddedToken read_added_token(const Field& token) {
  // Each of these would change where the token is found.
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"}) token[flag].expect(false);
  return {token["id"].as_id(), token["content"].as_text(), token["special"].as_bool()};
}
}  // namespace

std::string field_of(std::string_view where, std::string_view field) {
  return fmt::format("{}: {}", where, field);
}

TokenizerFile parse_tokenizer_file(std::string_view json, std::string_view where) {
  TokenizerJson parsed = parse_tokenizer_json(json, where);
  const Field root(parsed.rest, where, "");

  expect_unused(root, "truncation", nullptr);
  expect_unused(root, "padding", nullptr);
  root["normalizer"]["type"].expect("NFC");
  TokenizerFile file;
  file.split_regex = read_split_regex(root["pre_tokenizer"]);
  check_model(root["model"]);
  // A ByteLevel post-processor moves offsets only; its flags, and the decoder's, do not change ids or bytes.
  if (root.has("post_processor") && !root["post_processor"].is_null())
    root["post_processor"]["type"].expect("ByteLevel");
  root["decoder"]["type"].expect("ByteLevel");

  for (const Field& token : root["added_tokens"].elements())
    file.added_tokens.push_back(read_added_token(token));
  file.vocabulary = std::move(parsed.vocabulary);
  file.merges = std::move(parsed.merges);
  return file;
}

}  // namespace calla
