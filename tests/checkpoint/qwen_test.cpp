// The real model's tensor list, index and config, with sparse files in place of its 20 GB.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/config.h"
#include "checkpoint/files.h"
#include "checkpoint/loader.h"
#include "support/support.h"

namespace calla {
namespace {
using test::message_of;
using test::tells;

DType dtype_named(const std::string& spelled) {
  for (const DType dtype : {DType::u32, DType::bf16, DType::f32, DType::f16}) {
    if (name(dtype) == spelled) return dtype;
  }
  throw std::runtime_error("another dtype: " + spelled);
}

class Qwen : public ::testing::Test {
 protected:
  using Shards = std::map<std::string, std::vector<TensorSpec>>;

  void SetUp() override {
    const auto folder = test::qwen();
    CALLA_REQUIRE(folder, "CALLA_QWEN");
    const auto source = *folder / "qwen3.6-35b-a3b-4bit";
    for (const char* file : {"config.json", "model.safetensors.index.json"}) {
      std::filesystem::copy_file(source / file, made_.path() / file);
    }
    for (const Json& entry : read_json_file(source / "tensor_list.derived.json")) {
      shards_[entry["shard"].get<std::string>()].push_back({entry["name"].get<std::string>(),
                                                            dtype_named(entry["dtype"].get<std::string>()),
                                                            entry["shape"].get<std::vector<std::int64_t>>()});
    }
    for (const auto& [shard, tensors] : shards_) test::write_zeros(made_.path() / shard, tensors);
  }

  /// Writes one shard anew and gives the index the tensors that it then has.
  void rewrite(const std::string& shard, const std::vector<TensorSpec>& tensors) const {
    test::write_zeros(made_.path() / shard, tensors);
    Json map = Json::object();
    for (const auto& [other, specs] : shards_) {
      for (const TensorSpec& spec : other == shard ? tensors : specs) map[spec.name] = other;
    }
    test::write_file(made_.path() / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  }

  Weights load() const {
    const ModelConfig config = read_config(made_.path());
    return bind_weights(TensorStore::open(made_.path()), config.shape);
  }
  std::string fault() const {
    return message_of([&] { load(); });
  }

  Shards shards_;
  test::TemporaryFolder made_;
};

TEST_F(Qwen, BindsWhole) {
  const Weights w = load();
  EXPECT_EQ(w.layers.size(), 40U);
  EXPECT_FALSE(w.mtp.has_value());
  EXPECT_EQ(w.layers[39].moe.gate.all.rows, 256 * 512);
  EXPECT_EQ(w.layers[39].moe.down.expert(255).columns, 512);
  EXPECT_EQ(w.norm, std::vector<float>(2048, 0.0F));
  std::uint64_t vision = 0;
  std::uint64_t all = 0;
  for (const auto& [shard, tensors] : shards_) {
    all += test::data_bytes(tensors);
    for (const TensorSpec& tensor : tensors)
      vision += is_skipped(tensor.name) ? test::data_bytes({tensor}) : 0;
  }
  EXPECT_EQ(all, 20'401'929'952U) << "the index's total_size";
  EXPECT_EQ(w.bytes, all - vision);
}

TEST_F(Qwen, IsTheListThatTheTableGives) {
  std::map<std::string, TensorSpec> listed;
  for (const auto& [shard, tensors] : shards_) {
    for (const TensorSpec& tensor : tensors) {
      if (!is_skipped(tensor.name)) listed[tensor.name] = tensor;
    }
  }
  const auto specs = tensor_specs(qwen36_35b, false);
  EXPECT_EQ(specs.size(), listed.size());
  for (const TensorSpec& spec : specs) EXPECT_EQ(spec, listed[spec.name]) << spec.name;
}

TEST_F(Qwen, NamesATensorThatIsMissingFromAShard) {
  const std::string shard = "model-00004-of-00004.safetensors";
  std::vector<TensorSpec> tensors = shards_[shard];
  std::erase_if(tensors,
                [](const TensorSpec& spec) { return spec.name == "language_model.model.norm.weight"; });
  test::write_zeros(made_.path() / shard, tensors);
  EXPECT_TRUE(
      tells(fault(), {"the shards disagree: \"language_model.model.norm.weight\" is not in " + shard}));
  rewrite(shard, tensors);
  EXPECT_TRUE(tells(
      fault(),
      {"does not hold the tensors of Qwen3.6-35B-A3B: \"language_model.model.norm.weight\" is missing"}));
}

TEST_F(Qwen, NamesATensorTooMany) {
  const std::string shard = "model-00002-of-00004.safetensors";
  std::vector<TensorSpec> tensors = shards_[shard];
  tensors.push_back({"language_model.model.layers.40.input_layernorm.weight", DType::bf16, {2048}});
  test::write_zeros(made_.path() / shard, tensors);
  EXPECT_TRUE(tells(fault(), {"layers.40.input_layernorm.weight\" of " + shard + " is not in the index"}));
  rewrite(shard, tensors);
  EXPECT_TRUE(tells(fault(), {"\"language_model.model.layers.40.input_layernorm.weight\" is unknown"}));
}

TEST_F(Qwen, NamesATensorOfAnotherShape) {
  const std::string shard = "model-00001-of-00004.safetensors";
  std::vector<TensorSpec> tensors = shards_[shard];
  const auto router = std::find_if(tensors.begin(), tensors.end(), [](const TensorSpec& spec) {
    return spec.name == "language_model.model.layers.0.mlp.gate.weight";
  });
  ASSERT_NE(router, tensors.end());
  router->shape = {256, 256};
  rewrite(shard, tensors);
  EXPECT_TRUE(tells(
      fault(),
      {"\"language_model.model.layers.0.mlp.gate.weight\" is U32 [256, 256], expected U32 [256, 512]"}));
}

TEST_F(Qwen, SaysHowMuchOfACutShardIsMissing) {
  const auto path = made_.path() / "model-00003-of-00004.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1'000'000'000);
  EXPECT_TRUE(tells(fault(), {"model-00003-of-00004.safetensors: is cut off",
                              "(1000000000 are missing); download it again"}));
  std::filesystem::remove(path);
  EXPECT_TRUE(tells(fault(), {"names files that are not there: \"model-00003-of-00004.safetensors\""}));
}

}  // namespace
}  // namespace calla
