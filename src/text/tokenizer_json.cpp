#include "text/tokenizer_json.h"

#include <array>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "text/byte_level.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace calla {
namespace {
using Tree = nlohmann::json;

// The events of nlohmann's parser (its "SAX" interface, which fixes the names). Every fault is thrown.
class Reader {
 public:
  explicit Reader(std::string_view where) : where_(where) {}

  TokenizerJson result() && {
    if (!has_vocabulary_) throw Error(field_of(where_, "model.vocab"), "is missing", "expected an object");
    if (!has_merges_) throw Error(field_of(where_, "model.merges"), "is missing", "expected an array");
    return std::move(result_);
  }

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(Tree::number_integer_t value) { return scalar(value); }
  bool number_float(Tree::number_float_t value, const std::string& /*text*/) { return scalar(value); }
  bool binary(Tree::binary_t& /*value*/) { return true; }  // JSON text has none

  bool number_unsigned(Tree::number_unsigned_t value) {
    if (place_ != Place::vocabulary) return scalar(value);
    if (value >= Vocabulary::id_limit) misplaced();
    result_.vocabulary.push_back({bytes_of(key_, "model.vocab"), static_cast<Token>(value)});
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::merges) {
      const std::size_t space = value.find(' ');
      if (space == std::string::npos) misplaced();
      const std::string_view text = value;
      add_merge(text.substr(0, space), text.substr(space + 1));
      return true;
    }
    if (place_ != Place::merge_pair) return scalar(std::move(value));
    if (pair_size_ == pair_.size()) misplaced();
    pair_[pair_size_++] = std::move(value);
    return true;
  }

  bool key(std::string& value) {
    key_ = std::move(value);
    return true;
  }

  bool start_object(std::size_t /*size*/) {
    if (place_ != Place::tree) misplaced();
    if (is_field_of_model("vocab")) return enter(Place::vocabulary, has_vocabulary_);
    return open(Tree::object());
  }

  bool end_object() {
    if (place_ == Place::tree) return close();
    place_ = Place::tree;
    return true;
  }

  bool start_array(std::size_t /*size*/) {
    if (place_ == Place::merges) {
      place_ = Place::merge_pair;
      pair_size_ = 0;
      return true;
    }
    if (place_ != Place::tree) misplaced();
    if (is_field_of_model("merges")) return enter(Place::merges, has_merges_);
    return open(Tree::array());
  }

  bool end_array() {
    if (place_ == Place::tree) return close();
    if (place_ == Place::merges) {
      place_ = Place::tree;
      return true;
    }
    if (pair_size_ != pair_.size()) misplaced();
    add_merge(pair_[0], pair_[1]);
    place_ = Place::merges;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/, const Tree::exception& /*fault*/) {
    throw Error(where_, fmt::format("is not valid JSON at byte {}", position),
                "the file may be cut or damaged");
  }

 private:
  enum class Place { tree, vocabulary, merges, merge_pair };

  struct Open {
    Tree* value;
    std::string name;  // of the field, where it is one
  };

  bool is_field_of_model(std::string_view name) const {
    return open_.size() == 2 && open_[0].value->is_object() && open_[1].name == "model" &&
           open_[1].value->is_object() && key_ == name;
  }

  bool enter(Place place, bool& entered) {
    if (entered) throw Error(field_of(where_, "model." + key_), "is there twice");
    entered = true;
    place_ = place;
    return true;
  }

  Tree& add(Tree value) {
    if (open_.empty()) return result_.rest = std::move(value);
    Tree& parent = *open_.back().value;
    if (parent.is_object()) return parent[key_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }

  bool scalar(Tree value) {
    if (place_ != Place::tree) misplaced();
    add(std::move(value));
    return true;
  }

  bool open(Tree empty) {
    constexpr std::size_t deepest = 32;
    if (open_.size() == deepest) throw Error(where_, fmt::format("is nested more than {} deep", deepest));
    const std::string name = key_;
    open_.push_back({&add(std::move(empty)), name});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string bytes_of(std::string_view token, std::string_view field) const {
    std::optional<std::string> bytes = bytes_from_byte_level(token);
    if (bytes && !bytes->empty()) return *std::move(bytes);
    throw Error(field_of(where_, field), fmt::format("has the token \"{}\"", mend_utf8(token.substr(0, 100))),
                "expected one or more characters of the byte-level alphabet");
  }

  void add_merge(std::string_view left, std::string_view right) {
    result_.merges.push_back({bytes_of(left, "model.merges"), bytes_of(right, "model.merges")});
  }

  // A value that the vocabulary or the merges cannot have at this place.
  [[noreturn]] void misplaced() const {
    if (place_ == Place::vocabulary) {
      throw Error(field_of(where_, fmt::format("model.vocab[\"{}\"]", mend_utf8(key_.substr(0, 100)))),
                  "is not an id", fmt::format("expected a whole number below {}", Vocabulary::id_limit));
    }
    throw Error(field_of(where_, fmt::format("model.merges[{}]", result_.merges.size())), "is not a merge",
                R"(expected "left right" or ["left", "right"])");
  }

  std::string_view where_;
  TokenizerJson result_;
  Place place_ = Place::tree;
  std::vector<Open> open_;
  std::string key_;
  std::array<std::string, 2> pair_;
  std::size_t pair_size_ = 0;
  bool has_vocabulary_ = false;
  bool has_merges_ = false;
};
}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view json, std::string_view where) {
  Reader reader(where);
  Tree::sax_parse(json.data(), json.data() + json.size(), &reader);
  return std::move(reader).result();
}

}  // namespace calla
