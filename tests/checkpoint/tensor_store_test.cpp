#include "checkpoint/tensor_store.h"

#include <map>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/files.h"
#include "support/support.h"

namespace calla {
namespace {
using test::message_of;
using test::tells;

/// A directory with a config.json, to which a test adds what it is about.
class TensorStoreTest : public ::testing::Test {
 protected:
  TensorStoreTest() { write("config.json", "{}"); }

  void write(const std::string& name, std::string_view bytes) const {
    test::write_file(folder_.path() / name, bytes);
  }
  void write_file_of(const std::string& name, const std::vector<std::string>& tensors) const {
    std::vector<TensorSpec> specs;
    specs.reserve(tensors.size());
    for (const std::string& tensor : tensors) specs.push_back({tensor, DType::u8, {4}});
    test::write_zeros(folder_.path() / name, specs);
  }
  void write_index(const std::map<std::string, std::string>& shard_of) const {
    write("model.safetensors.index.json",
          Json{{"metadata", {{"total_size", 8}}}, {"weight_map", shard_of}}.dump());
  }
  std::string fault() const {
    return message_of([&] { TensorStore::open(folder_.path()); });
  }
  std::filesystem::path path() const { return folder_.path(); }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(TensorStoreTest, OpensOneFile) {
  write_file_of("model.safetensors", {"a", "b"});
  const auto store = TensorStore::open(path());
  EXPECT_EQ(store->tensors().size(), 2U);
  EXPECT_EQ(store->files().size(), 1U);
  EXPECT_EQ(store->directory(), path());
}

TEST_F(TensorStoreTest, OpensShardsThroughTheIndex) {
  write_file_of("model-00002-of-00002.safetensors", {"a", "c"});
  write_file_of("model-00001-of-00002.safetensors", {"b"});
  const std::string second = "model-00002-of-00002.safetensors";
  write_index({{"a", second}, {"b", "model-00001-of-00002.safetensors"}, {"c", second}});
  const auto store = TensorStore::open(path());
  EXPECT_EQ(store->tensors().size(), 3U);
  ASSERT_EQ(store->files().size(), 2U);
  EXPECT_EQ(store->files()[1]->path().filename(), second);
  EXPECT_EQ(store->tensors().at("a"), &store->files()[1]->tensors().at("a"));
}

TEST_F(TensorStoreTest, OpensAnIndexOfOneFile) {
  write_file_of("model.safetensors", {"a"});
  write_index({{"a", "model.safetensors"}});
  EXPECT_EQ(TensorStore::open(path())->tensors().size(), 1U);
}

TEST_F(TensorStoreTest, RefusesADirectoryWithoutWeights) {
  EXPECT_TRUE(
      tells(fault(), {"holds no weights: no model.safetensors", "mlx-community/Qwen3.6-35B-A3B-4bit"}));
  write("pytorch_model.bin", "x");
  EXPECT_TRUE(tells(fault(), {"holds no weights"}));
}

TEST_F(TensorStoreTest, RefusesFilesOfAnotherName) {
  write_file_of("model-00001-of-00002.safetensors", {"a"});
  EXPECT_TRUE(tells(fault(), {"holds \"model-00001-of-00002.safetensors\" but neither",
                              "download model.safetensors.index"}));
  write_file_of("model.safetensors", {"b"});
  EXPECT_TRUE(
      tells(fault(), {"beside model.safetensors", "\"model-00001-of-00002.safetensors\"", "move them"}));
  write_index({{"b", "model.safetensors"}});
  EXPECT_TRUE(tells(fault(), {"does not name", "\"model-00001-of-00002.safetensors\""}));
}

TEST_F(TensorStoreTest, NamesMissingShardsEightAtMost) {
  std::map<std::string, std::string> shard_of;
  for (int i = 10; i < 20; ++i) shard_of[fmt::format("t{}", i)] = fmt::format("model-{}.safetensors", i);
  write_file_of("model-10.safetensors", {"t10"});
  write_index(shard_of);
  EXPECT_TRUE(tells(
      fault(), {"model.safetensors.index.json: names files that are not there: \"model-11.safetensors\";",
                "\"model-18.safetensors\"; and 1 more; download"}));
}

TEST_F(TensorStoreTest, RefusesAnIndexThatIsNone) {
  write_file_of("model.safetensors", {"a"});
  for (const char* index : {"[]", "{}", R"({"weight_map":[]})", "1"}) {
    write("model.safetensors.index.json", index);
    EXPECT_TRUE(tells(fault(), {"has no weight_map object"})) << index;
  }
  write("model.safetensors.index.json", R"({"weight_map":{}})");
  EXPECT_TRUE(tells(fault(), {"names no tensor"}));
  write("model.safetensors.index.json", "");
  EXPECT_TRUE(tells(fault(), {"is empty, not JSON"}));
  write("model.safetensors.index.json", R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})");
  EXPECT_TRUE(tells(fault(), {"names \"a\" twice"}));
}

TEST_F(TensorStoreTest, RefusesShardsOutsideTheDirectory) {
  write_file_of("model.safetensors", {"a"});
  for (const char* shard : {R"("../model.safetensors")", R"("/etc/x.safetensors")", R"("a\\b.safetensors")",
                            R"("")", R"("..")", R"("x.bin")", R"("x\u0000.safetensors")", "7", "null"}) {
    write("model.safetensors.index.json", fmt::format(R"({{"weight_map":{{"a":{}}}}})", shard));
    EXPECT_TRUE(tells(fault(), {"puts tensor \"a\" in", "no plain name of a .safetensors file"})) << shard;
  }
}

TEST_F(TensorStoreTest, RefusesAnIndexThatDisagreesWithItsShards) {
  write_file_of("x.safetensors", {"a", "b"});
  write_file_of("y.safetensors", {"c"});
  write_index({{"a", "x.safetensors"}, {"b", "y.safetensors"}, {"c", "y.safetensors"}});
  EXPECT_TRUE(tells(fault(), {"index.json: and the shards disagree: ",
                              "\"b\" lies in x.safetensors, the index says y.safetensors",
                              "\"b\" is not in y.safetensors"}));
  write_index({{"a", "x.safetensors"}, {"c", "y.safetensors"}});
  EXPECT_TRUE(tells(fault(), {"\"b\" of x.safetensors is not in the index"}));
  write_index(
      {{"a", "x.safetensors"}, {"b", "x.safetensors"}, {"c", "y.safetensors"}, {"d", "y.safetensors"}});
  EXPECT_TRUE(tells(fault(), {"\"d\" is not in y.safetensors"}));
}

TEST_F(TensorStoreTest, RefusesATensorInTwoShards) {
  write_file_of("x.safetensors", {"a", "b"});
  write_file_of("y.safetensors", {"b"});
  write_index({{"a", "x.safetensors"}, {"b", "y.safetensors"}});
  EXPECT_TRUE(tells(fault(), {"\"b\" lies in x.safetensors, the index says y.safetensors"}));
}

TEST_F(TensorStoreTest, NamesTheShardThatIsCutOff) {
  write_file_of("model.safetensors", {"a"});
  std::filesystem::resize_file(path() / "model.safetensors",
                               std::filesystem::file_size(path() / "model.safetensors") - 1);
  EXPECT_TRUE(tells(fault(), {"model.safetensors: is cut off", "(1 are missing)"}));
  write("model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_TRUE(tells(fault(), {"model.safetensors: is a git-lfs pointer"}));
}

TEST(ModelDirectory, EachWrongPathHasItsSentence) {
  const test::TemporaryFolder folder;
  const auto fault = [](const std::filesystem::path& path) {
    return message_of([&] { TensorStore::open(path); });
  };
  const std::filesystem::path& path = folder.path();
  EXPECT_TRUE(
      tells(fault(path / "none"), {"none: no such directory", "give the directory of the checkpoint"}));
  EXPECT_TRUE(tells(fault(""), {"no such directory"}));
  EXPECT_TRUE(tells(fault(path), {"has no config.json", "whole checkpoint"}));
  test::write_file(path / "model.gguf", "GGUF");
  EXPECT_TRUE(
      tells(fault(path / "model.gguf"), {"model.gguf: is a GGUF file; Calla reads the MLX 4-bit checkpoint "
                                         "(mlx-community/Qwen3.6-35B-A3B-4bit)"}));
  EXPECT_TRUE(tells(fault(path), {"holds GGUF files only; Calla reads the MLX 4-bit checkpoint"}));
  test::write_file(path / "config.json", "{}");
  EXPECT_TRUE(tells(fault(path), {"holds GGUF files only"})) << "a config.json makes no checkpoint of it";
  EXPECT_TRUE(
      tells(fault(path / "config.json"), {"is a file, not a directory", "give the directory that holds"}));
  EXPECT_TRUE(tells(fault(path / "config.json" / "x"), {"no such directory"}));
}

}  // namespace
}  // namespace calla
