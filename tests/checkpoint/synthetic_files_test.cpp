#include "checkpoint/synthetic_files.h"

#include <cstring>
#include <stdexcept>

#include <gtest/gtest.h>

#include "checkpoint/files.h"
#include "checkpoint/synthetic.h"
#include "support/support.h"

namespace calla {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using test::tells;

const LoadProgress silent = [](std::uint64_t, std::uint64_t) {};

Shape small() {
  Shape shape = demo;
  shape.layers = 4;
  return shape;
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

TEST(SyntheticFiles, LoadAsWhatIsMadeInMemory) {
  const test::TemporaryFolder folder;
  const fs::path directory = folder.path() / "new/made";
  std::uint64_t last = 0;
  std::uint64_t whole = 0;
  write_synthetic(small(), test::demo_model(), directory, [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    whole = total;
  });
  EXPECT_EQ(last, whole);

  const ModelConfig config = read_config(directory);
  EXPECT_EQ(config.shape, small());
  EXPECT_EQ(config.context, 4096);
  EXPECT_EQ(config.end_tokens, read_config(test::demo_model()).end_tokens);
  EXPECT_EQ(read_generation_config(directory).top_k, read_generation_config(test::demo_model()).top_k);
  EXPECT_EQ(test::read_file(directory / "tokenizer.json"),
            test::read_file(test::demo_model() / "tokenizer.json"));

  const Weights loaded = bind_weights(TensorStore::open(directory), config.shape);
  EXPECT_EQ(loaded.bytes, whole);
  EXPECT_EQ(loaded.bytes, synthetic_weights(small()).bytes);
  const auto store = TensorStore::open(directory);
  for (const StoredTensor& tensor : synthesize(small()).tensors) {
    EXPECT_TRUE(same_bytes(store->tensors().at(tensor.spec.name)->bytes, tensor.bytes)) << tensor.spec.name;
  }
}

TEST(SyntheticFiles, RefusesADirectoryWithSomethingInIt) {
  const test::TemporaryFolder folder;
  test::write_file(folder.path() / "mine", "precious");
  EXPECT_TRUE(tells(message_of([&] { write_synthetic(small(), test::demo_model(), folder.path(), silent); }),
                    {folder.path().string(), "exists and is not an empty directory"}));
  EXPECT_TRUE(
      tells(message_of([&] { write_synthetic(small(), test::demo_model(), folder.path() / "mine", silent); }),
            {"mine", "exists and is not an empty directory"}));
  EXPECT_EQ(test::read_file(folder.path() / "mine"), "precious");
}

TEST(SyntheticFiles, LeavesNothingBehindWhenStopped) {
  const test::TemporaryFolder folder;
  const fs::path directory = folder.path() / "made";
  EXPECT_THROW(write_synthetic(small(), test::demo_model(), directory,
                               [&](std::uint64_t done, std::uint64_t) {
                                 if (done > 0) throw std::runtime_error("stopped");
                               }),
               std::runtime_error);
  EXPECT_FALSE(fs::exists(directory));
}

TEST(SyntheticFiles, NamesATokenizerThatIsNotThere) {
  const test::TemporaryFolder folder;
  fs::copy_file(test::demo_model() / "config.json", folder.path() / "config.json");
  const fs::path directory = folder.path() / "made";
  EXPECT_TRUE(tells(message_of([&] { write_synthetic(small(), folder.path(), directory, silent); }),
                    {"tokenizer.json", "cannot be copied"}));
  EXPECT_FALSE(fs::exists(directory));
}

}  // namespace
}  // namespace calla
