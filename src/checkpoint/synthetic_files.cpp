#include "checkpoint/synthetic_files.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/synthetic.h"
#include "model/memory_plan.h"

namespace calla {
namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t shard_limit = 5'000'000'000;
constexpr std::array borrowed{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                              "generation_config.json"};

/// A directory in the making: removed with its contents unless it is kept.
class UnfinishedDirectory {
 public:
  explicit UnfinishedDirectory(fs::path path) : path_(std::move(path)) {
    std::error_code fault;
    if (fs::exists(path_, fault) && !(fs::is_directory(path_, fault) && fs::is_empty(path_, fault))) {
      throw Error(path_.string(), "exists and is not an empty directory",
                  "give a new directory, or remove this one");
    }
    fs::create_directories(path_, fault);
    if (fault) throw Error(path_.string(), "cannot be made: " + fault.message());
  }
  ~UnfinishedDirectory() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }
  UnfinishedDirectory(const UnfinishedDirectory&) = delete;
  UnfinishedDirectory& operator=(const UnfinishedDirectory&) = delete;

  const fs::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  fs::path path_;
  bool kept_ = false;
};

void require_room(const fs::path& directory, std::uint64_t bytes) {
  std::error_code fault;
  const fs::space_info space = fs::space(directory, fault);
  if (!fault && space.available < bytes) {
    throw Error(directory.string(),
                fmt::format("the checkpoint takes {} and the disk has {} free", format_bytes(bytes),
                            format_bytes(space.available)),
                "make room, or take fewer --layers");
  }
}

/// A file whose every fault of writing is an Error.
class OutputFile {
 public:
  explicit OutputFile(fs::path path) : path_(std::move(path)), out_(path_, std::ios::binary) { check(); }

  void write(std::span<const std::byte> bytes) {
    out_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    check();
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void close() {
    out_.close();
    check();
  }

 private:
  void check() const {
    if (!out_) throw Error(path_.string(), "cannot be written", "check that the disk has room");
  }

  fs::path path_;
  std::ofstream out_;
};

Json rope_parameters() {
  return {{"rope_type", "default"},
          {"rope_theta", rope_theta},
          {"partial_rotary_factor", double{Shape::rotary_dim} / Shape::attention_head_dim}};
}

Json quantization(const Shape& shape) {
  constexpr int group = Shape::quantization_group;
  Json block{{"group_size", group}, {"bits", 4}, {"mode", "affine"}};
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (const char* gate : {"gate", "shared_expert_gate"}) {
      block[fmt::format("language_model.model.layers.{}.mlp.{}", layer, gate)] = {{"group_size", group},
                                                                                  {"bits", 8}};
    }
  }
  return block;
}

Json config_json(const ModelConfig& config) {
  const Shape& s = config.shape;
  Json layer_types = Json::array();
  for (int layer = 0; layer < s.layers; ++layer)
    layer_types.push_back(Shape::is_attention(layer) ? "full_attention" : "linear_attention");
  Json text{{"model_type", "qwen3_5_moe_text"},
            {"vocab_size", s.vocabulary},
            {"hidden_size", s.hidden},
            {"num_hidden_layers", s.layers},
            {"num_attention_heads", s.attention_heads},
            {"num_key_value_heads", s.kv_heads},
            {"head_dim", Shape::attention_head_dim},
            {"hidden_act", "silu"},
            {"max_position_embeddings", config.context},
            {"rms_norm_eps", 1e-6},
            {"tie_word_embeddings", false},
            {"rope_parameters", rope_parameters()},
            {"attention_bias", false},
            {"attn_output_gate", true},
            {"linear_conv_kernel_dim", Shape::convolution_taps},
            {"linear_key_head_dim", Shape::delta_head_dim},
            {"linear_value_head_dim", Shape::delta_head_dim},
            {"linear_num_key_heads", s.delta_key_heads},
            {"linear_num_value_heads", s.delta_value_heads},
            {"num_experts", s.experts},
            {"num_experts_per_tok", Shape::experts_per_token},
            {"moe_intermediate_size", s.expert_hidden},
            {"shared_expert_intermediate_size", s.shared_expert_hidden},
            {"full_attention_interval", Shape::attention_interval},
            {"layer_types", std::move(layer_types)},
            {"mtp_num_hidden_layers", 0},
            {"dtype", "bfloat16"},
            {"eos_token_id", config.end_tokens}};
  return {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
          {"model_type", "qwen3_5_moe"},
          {"text_config", std::move(text)},
          {"tie_word_embeddings", false},
          {"quantization", quantization(s)},
          {"quantization_config", quantization(s)}};
}

using Shard = std::span<const StoredTensor>;

std::uint64_t bytes_of(Shard shard) {
  std::uint64_t bytes = 0;
  for (const StoredTensor& tensor : shard) bytes += tensor.bytes.size();
  return bytes;
}

/// Cuts the list where a shard would grow beyond the limit.
std::vector<Shard> shards_of(Shard tensors) {
  std::vector<Shard> shards;
  while (!tensors.empty()) {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
    while (count < tensors.size() && (count == 0 || bytes + tensors[count].bytes.size() <= shard_limit))
      bytes += tensors[count++].bytes.size();
    shards.push_back(tensors.first(count));
    tensors = tensors.subspan(count);
  }
  return shards;
}

std::string header_of(Shard shard) {
  Json header{{"__metadata__", {{"format", "mlx"}}}};
  std::uint64_t begin = 0;
  for (const StoredTensor& tensor : shard) {
    const std::uint64_t end = begin + tensor.bytes.size();
    header[tensor.spec.name] = {
        {"dtype", name(tensor.spec.dtype)}, {"shape", tensor.spec.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins at a multiple of eight
  std::string length;
  for (unsigned shift = 0; shift < 64; shift += 8)
    length.push_back(static_cast<char>((std::uint64_t{text.size()} >> shift) & 0xFF));
  return length + text;
}

/// Reports how much of all shards is written.
class Tally {
 public:
  Tally(std::uint64_t total, const LoadProgress& report) : total_(total), report_(report) {
    report_(0, total_);
  }
  void add(std::uint64_t bytes) { report_(done_ += bytes, total_); }

 private:
  std::uint64_t done_ = 0;
  std::uint64_t total_;
  const LoadProgress& report_;
};

void write_shard(const fs::path& path, Shard shard, Tally& tally) {
  constexpr std::size_t piece = 64 << 20;
  OutputFile file(path);
  file.write(header_of(shard));
  for (const StoredTensor& tensor : shard) {
    for (std::size_t done = 0; done < tensor.bytes.size(); done += piece) {
      const auto bytes = tensor.bytes.subspan(done, std::min(piece, tensor.bytes.size() - done));
      file.write(bytes);
      tally.add(bytes.size());
    }
  }
  file.close();
}

void write_json(const fs::path& path, const Json& json) {
  OutputFile file(path);
  file.write(json.dump(2) + "\n");
  file.close();
}

void borrow(const fs::path& from, const fs::path& to) {
  for (const char* file : borrowed) {
    std::error_code fault;
    fs::copy_file(from / file, to / file, fault);
    if (fault) throw Error((from / file).string(), fmt::format("cannot be copied: {}", fault.message()));
  }
}

}  // namespace

void write_synthetic(const Shape& shape, const fs::path& tokenizer, const fs::path& directory,
                     const LoadProgress& progress) {
  const ModelConfig config = synthetic_config(shape, read_config(tokenizer));
  UnfinishedDirectory made(directory);
  const SyntheticCheckpoint checkpoint = synthesize(shape);
  constexpr std::uint64_t beside = 20'000'000;  // headers, index, tokenizer
  require_room(made.path(), checkpoint.weights.bytes + beside);

  borrow(tokenizer, made.path());
  write_json(made.path() / "config.json", config_json(config));
  const std::vector<Shard> shards = shards_of(checkpoint.tensors);
  Json index{{"metadata", {{"total_size", bytes_of(checkpoint.tensors)}}}, {"weight_map", Json::object()}};
  Tally tally(checkpoint.weights.bytes, progress);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shards.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(made.path() / file, shards[i], tally);
    for (const StoredTensor& tensor : shards[i]) index["weight_map"][tensor.spec.name] = file;
  }
  write_json(made.path() / "model.safetensors.index.json", index);
  made.keep();
}

}  // namespace calla
