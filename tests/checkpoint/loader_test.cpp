#include "checkpoint/loader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "checkpoint/config.h"
#include "checkpoint/files.h"
#include "checkpoint/tensor_table.h"
#include "support/support.h"

namespace calla {
namespace {
using test::message_of;
using test::tells;

std::shared_ptr<const TensorStore> demo_store() {
  static const std::shared_ptr<const TensorStore> store = TensorStore::open(test::demo_model());
  return store;
}

/// The 16 bits at an index of a tensor of the demo, widened: a reading that shares no code with the loader.
float direct(const char* name, std::size_t index) {
  const Tensor& tensor = *demo_store()->tensors().at(name);
  std::uint32_t bits = 0;
  std::memcpy(reinterpret_cast<char*>(&bits) + 2, tensor.bytes.data() + 2 * index, 2);
  return std::bit_cast<float>(bits);
}

void expect_view(const AffineMatrix& matrix, const std::string& name, int rows, int columns, int bits) {
  EXPECT_EQ(matrix.rows, rows) << name;
  EXPECT_EQ(matrix.columns, columns) << name;
  EXPECT_EQ(matrix.bits, bits) << name;
  const auto& tensors = demo_store()->tensors();
  EXPECT_EQ(matrix.words.data(), tensors.at(name + ".weight")->bytes.data()) << name;
  EXPECT_EQ(matrix.scales.data(), tensors.at(name + ".scales")->bytes.data()) << name;
  EXPECT_EQ(matrix.biases.data(), tensors.at(name + ".biases")->bytes.data()) << name;
  EXPECT_EQ(matrix.words.size(), static_cast<std::size_t>(rows) * columns * bits / 8) << name;
  EXPECT_EQ(matrix.scales.size(), static_cast<std::size_t>(rows) * columns / 64 * 2) << name;
  EXPECT_EQ(matrix.biases.size(), matrix.scales.size()) << name;
}

TEST(Loader, BindsEveryMatrixOfTheDemo) {
  const Weights w = bind_weights(demo_store(), demo);
  const std::string model = "language_model.model.";
  expect_view(w.embedding, model + "embed_tokens", 2560, 512, 4);
  expect_view(w.head, "language_model.lm_head", 2560, 512, 4);
  ASSERT_EQ(w.layers.size(), 8U);

  const auto& delta = std::get<DeltaNetWeights>(w.layers[5].mixer);
  const std::string linear = model + "layers.5.linear_attn.";
  expect_view(delta.qkv, linear + "in_proj_qkv", 2048, 512, 4);
  expect_view(delta.z, linear + "in_proj_z", 1024, 512, 4);
  expect_view(delta.a, linear + "in_proj_a", 8, 512, 4);
  expect_view(delta.b, linear + "in_proj_b", 8, 512, 4);
  expect_view(delta.out, linear + "out_proj", 512, 1024, 4);

  const auto& attention = std::get<AttentionWeights>(w.layers[7].mixer);
  const std::string self = model + "layers.7.self_attn.";
  expect_view(attention.q, self + "q_proj", 4096, 512, 4);
  expect_view(attention.k, self + "k_proj", 256, 512, 4);
  expect_view(attention.v, self + "v_proj", 256, 512, 4);
  expect_view(attention.o, self + "o_proj", 512, 2048, 4);

  const MoeWeights& moe = w.layers[5].moe;
  const std::string mlp = model + "layers.5.mlp.";
  expect_view(moe.router, mlp + "gate", 32, 512, 8);
  expect_view(moe.shared_gate, mlp + "shared_expert_gate", 1, 512, 8);
  expect_view(moe.shared.gate, mlp + "shared_expert.gate_proj", 128, 512, 4);
  expect_view(moe.shared.up, mlp + "shared_expert.up_proj", 128, 512, 4);
  expect_view(moe.shared.down, mlp + "shared_expert.down_proj", 512, 128, 4);
  expect_view(moe.gate.all, mlp + "switch_mlp.gate_proj", 32 * 64, 512, 4);
  expect_view(moe.up.all, mlp + "switch_mlp.up_proj", 32 * 64, 512, 4);
  expect_view(moe.down.all, mlp + "switch_mlp.down_proj", 32 * 512, 64, 4);
  EXPECT_EQ(moe.down.experts, 32);
  EXPECT_EQ(moe.down.expert(3).rows, 512);
}

TEST(Loader, WidensEveryVectorOfTheDemo) {
  const Weights w = bind_weights(demo_store(), demo);
  EXPECT_EQ(w.norm.size(), 512U);
  EXPECT_EQ(w.norm[17], direct("language_model.model.norm.weight", 17));
  EXPECT_EQ(w.layers[2].input_norm[5], direct("language_model.model.layers.2.input_layernorm.weight", 5));
  EXPECT_EQ(w.layers[2].post_attention_norm[511],
            direct("language_model.model.layers.2.post_attention_layernorm.weight", 511));
  const auto& attention = std::get<AttentionWeights>(w.layers[3].mixer);
  EXPECT_EQ(attention.q_norm.size(), 256U);
  EXPECT_EQ(attention.q_norm[255], direct("language_model.model.layers.3.self_attn.q_norm.weight", 255));
  EXPECT_EQ(attention.k_norm[0], direct("language_model.model.layers.3.self_attn.k_norm.weight", 0));
  const auto& delta = std::get<DeltaNetWeights>(w.layers[0].mixer);
  EXPECT_EQ(delta.convolution.size(), 2048U * 4);
  EXPECT_EQ(delta.convolution[4 * 1000 + 3],
            direct("language_model.model.layers.0.linear_attn.conv1d.weight", 4003));
  EXPECT_EQ(delta.dt_bias[7], direct("language_model.model.layers.0.linear_attn.dt_bias", 7));
  EXPECT_EQ(delta.norm.size(), 128U);
  EXPECT_EQ(delta.norm[100], direct("language_model.model.layers.0.linear_attn.norm.weight", 100));
  // A_log is float32 in the demo.
  const Tensor& a_log = *demo_store()->tensors().at("language_model.model.layers.0.linear_attn.A_log");
  ASSERT_EQ(a_log.dtype, DType::f32);
  std::vector<float> stored(8);
  std::memcpy(stored.data(), a_log.bytes.data(), a_log.bytes.size());
  EXPECT_EQ(delta.a_log, stored);
}

TEST(Loader, BindsTheMtpLayerOfTheDemo) {
  const Weights w = bind_weights(demo_store(), demo);
  ASSERT_TRUE(w.mtp.has_value());
  expect_view(w.mtp->fc, "mtp.fc", 512, 1024, 4);
  expect_view(w.mtp->layer.moe.router, "mtp.layers.0.mlp.gate", 32, 512, 8);
  EXPECT_TRUE(std::holds_alternative<AttentionWeights>(w.mtp->layer.mixer));
  EXPECT_EQ(w.mtp->norm[3], direct("mtp.norm.weight", 3));
  EXPECT_EQ(w.mtp->embedding_norm[3], direct("mtp.pre_fc_norm_embedding.weight", 3));
  EXPECT_EQ(w.mtp->hidden_norm[3], direct("mtp.pre_fc_norm_hidden.weight", 3));
}

TEST(Loader, CountsTheBytesAndKeepsTheFilesMapped) {
  const auto all = test::data_bytes(tensor_specs(demo, true));
  auto store = TensorStore::open(test::demo_model());
  const std::weak_ptr<const TensorStore> watch = store;
  {
    const Weights w = bind_weights(std::move(store), demo);
    EXPECT_EQ(w.bytes, all + std::uint64_t{6} * 8 * 2) << "A_log of six layers is float32";
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(Loader, ListsTheDemosTensors) {
  const auto specs = tensor_specs(demo, true);
  const auto& tensors = demo_store()->tensors();
  EXPECT_EQ(specs.size(), tensors.size());
  for (const TensorSpec& spec : specs) {
    ASSERT_TRUE(tensors.contains(spec.name)) << spec.name;
    EXPECT_EQ(tensors.find(spec.name)->second->shape, spec.shape) << spec.name;
  }
  EXPECT_EQ(specs.front().name, "language_model.model.embed_tokens.weight");
  EXPECT_EQ(specs.back().name, "mtp.norm.weight");
}

/// A made checkpoint of the demo's shape, all zeros, after an edit of its list of tensors.
class MadeCheckpoint : public ::testing::Test {
 protected:
  using Specs = std::vector<TensorSpec>;

  std::string fault_after(const std::function<void(Specs&)>& edit, bool with_mtp = false) {
    return message_of([&] { bind(edit, with_mtp); });
  }
  Weights bind(const std::function<void(Specs&)>& edit, bool with_mtp = false) {
    Specs specs = tensor_specs(demo, with_mtp);
    edit(specs);
    test::write_file(folder_.path() / "config.json", "{}");
    test::write_zeros(folder_.path() / "model.safetensors", specs);
    return bind_weights(TensorStore::open(folder_.path()), demo);
  }
  static TensorSpec& find(Specs& specs, std::string_view name) {
    return *std::find_if(specs.begin(), specs.end(), [&](const auto& spec) { return spec.name == name; });
  }
  static void erase_if(Specs& specs, const std::function<bool(const std::string&)>& condition) {
    std::erase_if(specs, [&](const auto& spec) { return condition(spec.name); });
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(MadeCheckpoint, BindsWithAndWithoutMtp) {
  EXPECT_FALSE(bind([](Specs&) {}, false).mtp.has_value());
  EXPECT_TRUE(bind([](Specs&) {}, true).mtp.has_value());
}

TEST_F(MadeCheckpoint, SkipsTheVisionTower) {
  const Weights plain = bind([](Specs&) {});
  const Weights with_vision = bind([](Specs& specs) {
    specs.insert(specs.begin(), {"vision_tower.x", DType::f16, {7, 3}});
  });
  EXPECT_EQ(with_vision.bytes, plain.bytes);
}

TEST_F(MadeCheckpoint, AcceptsEveryFormOfTheSmallTensors) {
  const std::string layer = "language_model.model.layers.0.linear_attn.";
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{2048, 4, 1}, std::vector<std::int64_t>{2048, 1, 4},
        std::vector<std::int64_t>{2048, 4}}) {
    const Weights w = bind([&](Specs& specs) { find(specs, layer + "conv1d.weight").shape = shape; });
    EXPECT_EQ(std::get<DeltaNetWeights>(w.layers[0].mixer).convolution.size(), 8192U);
  }
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Weights w = bind([&](Specs& specs) {
      for (const char* name : {"A_log", "dt_bias", "norm.weight", "conv1d.weight"})
        find(specs, layer + name).dtype = dtype;
      find(specs, "language_model.model.norm.weight").dtype = dtype;
    });
    EXPECT_EQ(w.norm, std::vector<float>(512, 0.0F));
  }
}

TEST_F(MadeCheckpoint, NamesMissingTensors) {
  EXPECT_TRUE(tells(fault_after([](Specs& specs) {
                      erase_if(specs,
                               [](const auto& name) { return name == "language_model.lm_head.scales"; });
                    }),
                    {"does not hold the tensors of Calla demo: \"language_model.lm_head.scales\" is missing; "
                     "Calla reads"}));
}

TEST_F(MadeCheckpoint, NamesUnknownTensors) {
  EXPECT_TRUE(
      tells(fault_after([](Specs& specs) {
              specs.push_back({"language_model.model.layers.8.input_layernorm.weight", DType::bf16, {512}});
            }),
            {"\"language_model.model.layers.8.input_layernorm.weight\" is unknown"}));
}

TEST_F(MadeCheckpoint, NamesTensorsOfAnotherShapeOrType) {
  EXPECT_TRUE(
      tells(fault_after([](Specs& specs) {
              find(specs, "language_model.model.layers.1.mlp.gate.weight").shape = {32, 64};
              find(specs, "language_model.model.embed_tokens.scales").dtype = DType::f16;
              find(specs, "language_model.model.norm.weight").dtype = DType::f16;
              find(specs, "language_model.model.layers.0.linear_attn.conv1d.weight").shape = {4, 2048};
            }),
            {"\"language_model.model.layers.1.mlp.gate.weight\" is U32 [32, 64], expected U32 [32, 128]",
             "\"language_model.model.embed_tokens.scales\" is F16 [2560, 8], expected BF16 [2560, 8]",
             "\"language_model.model.norm.weight\" is F16 [512], expected BF16 [512]",
             "conv1d.weight\" is BF16 [4, 2048], expected BF16 [2048, 4, 1]"}));
}

TEST_F(MadeCheckpoint, TellsMissingAndUnknownSideBySideEightAtMost) {
  const std::string fault = fault_after([](Specs& specs) {
    for (TensorSpec& spec : specs) spec.name = "model." + spec.name;
  });
  EXPECT_TRUE(tells(
      fault,
      {"\"language_model.model.embed_tokens.weight\" is missing; \"model.language_model.lm_head.biases\" is "
       "unknown;",
       "; and 706 more; "}));
}

TEST_F(MadeCheckpoint, WantsTheMtpLayerWhole) {
  EXPECT_TRUE(
      tells(fault_after(
                [](Specs& specs) {
                  erase_if(specs, [](const auto& name) { return is_mtp(name) && name != "mtp.norm.weight"; });
                },
                true),
            {"\"mtp.fc.weight\" is missing", "; and "}));
  EXPECT_TRUE(tells(fault_after(
                        [](Specs& specs) {
                          specs.push_back({"mtp.layers.1.x", DType::u8, {1}});
                        },
                        true),
                    {"\"mtp.layers.1.x\" is unknown"}));
}

TEST(Prefetch, ReportsFromNothingToAllOfWhatIsUsed) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> reports;
  prefetch(*demo_store(),
           [&](std::uint64_t done, std::uint64_t total) { reports.emplace_back(done, total); });
  const std::uint64_t all = bind_weights(demo_store(), demo).bytes;
  ASSERT_GT(reports.size(), 4U);
  EXPECT_LT(reports.size(), 300U);
  EXPECT_EQ(reports.front(), std::pair(std::uint64_t{0}, all));
  EXPECT_EQ(reports.back(), std::pair(all, all));
  EXPECT_TRUE(std::is_sorted(reports.begin(), reports.end()));
}

TEST(Prefetch, LeavesTheVisionTowerOnDisk) {
  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "config.json", "{}");
  test::write_zeros(folder.path() / "model.safetensors", {{"a", DType::u8, {5000}},
                                                          {"vision_tower.x", DType::u8, {1'000'003}},
                                                          {"b", DType::u8, {1}},
                                                          {"c", DType::u8, {0}}});
  std::uint64_t last = 0;
  prefetch(*TensorStore::open(folder.path()), [&](std::uint64_t done, std::uint64_t) { last = done; });
  EXPECT_EQ(last, 5001U);
  prefetch(*TensorStore::open(folder.path()), {});
}

}  // namespace
}  // namespace calla
