#include "engine/disk_cache.h"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "requests.h"
#include "support/support.h"

namespace calla {
namespace {
namespace fs = std::filesystem;

using test::counting;
using test::FakeBackend;
using test::joined;

class DiskCacheTest : public testing::Test {
 protected:
  std::unique_ptr<DiskCache> open(std::uint64_t limit = 1 << 20, const std::string& identity = "model 1") {
    return std::make_unique<DiskCache>(folder_.path(), limit, identity,
                                       [this](const std::string& line) { log_ += line + '\n'; });
  }
  std::shared_ptr<const Snapshot> snapshot(const std::vector<Token>& tokens) {
    backend_.reset(0);
    for (std::size_t done = 0; done < tokens.size(); done += 4)
      backend_.prefill(0, std::span(tokens).subspan(done, std::min<std::size_t>(4, tokens.size() - done)),
                       true);
    return backend_.snapshot(0);
  }
  /// Writes them all, in turns of a process each.
  void write(const std::vector<std::vector<Token>>& all, std::uint64_t limit = 1 << 20) {
    for (const std::vector<Token>& tokens : all) open(limit)->offer(tokens, snapshot(tokens));
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().extension() != ".lock") names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  /// The file of so many tokens.
  fs::path file(int tokens) const {
    for (const std::string& name : files()) {
      if (name.ends_with("-" + std::to_string(tokens) + ".snapshot")) return folder_.path() / name;
    }
    throw std::runtime_error("no such file");
  }
  /// What a prompt finds, loaded; null where a file turned out to be of no use.
  std::unique_ptr<Snapshot> load(DiskCache& cache, const std::vector<Token>& prompt) {
    std::unique_ptr<Snapshot> loaded;
    for (const DiskCache::Step& step : cache.find(prompt, static_cast<int>(prompt.size()))) {
      loaded = cache.load(step.file, backend_, loaded.get());
      if (loaded == nullptr) return nullptr;
      EXPECT_EQ(loaded->position(), step.position);
    }
    return loaded;
  }
  static int reach(DiskCache& cache, const std::vector<Token>& prompt) {
    const auto steps = cache.find(prompt, static_cast<int>(prompt.size()));
    return steps.empty() ? 0 : steps.back().position;
  }
  static void flip_byte(const fs::path& path, std::size_t at) {
    std::string bytes = test::read_file(path);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 0x10);
    test::write_file(path, bytes);
  }

  test::TemporaryFolder folder_;
  std::string log_;
  std::shared_ptr<FakeBackend::Record> record_ = std::make_shared<FakeBackend::Record>();
  FakeBackend backend_{1, 100'000, record_};
};

TEST_F(DiskCacheTest, OutlivesTheProcess) {
  write({counting(0, 40), counting(0, 96), joined({counting(0, 40), counting(900, 8)})});
  const auto cache = open();
  EXPECT_EQ(cache->entries(), 3U);
  EXPECT_EQ(reach(*cache, counting(0, 200)), 96);
  EXPECT_EQ(reach(*cache, joined({counting(0, 40), counting(900, 60)})), 48);
  EXPECT_EQ(reach(*cache, counting(0, 95)), 40);
  EXPECT_EQ(reach(*cache, counting(1, 95)), 0);
  const auto loaded = load(*cache, counting(0, 200));
  ASSERT_NE(loaded, nullptr);
  backend_.restore(0, *loaded);
  const std::vector<Token> rest = counting(96, 4);
  backend_.set_sampling(0, {}, counting(0, 100));
  backend_.prefill(0, rest, true);  // throws where the sequence is not the prompt
  EXPECT_EQ(log_, "");
}

TEST_F(DiskCacheTest, NobodyElseMayReadIt) {
  write({counting(0, 40)});
  EXPECT_EQ(fs::status(file(40)).permissions() & (fs::perms::group_all | fs::perms::others_all),
            fs::perms::none);
}

TEST_F(DiskCacheTest, WritesWhatTheParentDoesNotHold) {
  write({counting(0, 400), counting(0, 408)});
  EXPECT_LT(fs::file_size(file(408)) + 350 * 2 * sizeof(Token), fs::file_size(file(400)))
      << "neither the tokens nor the state of the first 400";
}

TEST_F(DiskCacheTest, TheSizeOnDiskIsCountedAndBounded) {
  {
    const auto cache = open(1 << 20);
    cache->offer(counting(0, 40), snapshot(counting(0, 40)));
  }
  const std::uint64_t one = fs::file_size(file(40));
  EXPECT_EQ(open()->bytes(), one);
  // Before a file is written, room is made for all that it might take.
  const std::uint64_t limit = 20 * one + 8000;
  for (Token first = 1000; first < 61'000; first += 1000) {
    write({counting(first, 40)}, limit);
    std::uint64_t size = 0;
    for (const std::string& name : files()) size += fs::file_size(folder_.path() / name);
    ASSERT_LE(size, limit);
  }
  const auto cache = open(limit);
  EXPECT_LE(cache->bytes(), limit);
  EXPECT_GE(cache->entries(), 10U);
  EXPECT_EQ(reach(*cache, counting(0, 60)), 0) << "the oldest is gone";
  EXPECT_EQ(reach(*cache, counting(60'000, 60)), 40);
}

TEST_F(DiskCacheTest, WhatOthersStandOnGoesAfterThem) {
  write({counting(0, 40), counting(0, 80), counting(5000, 40)});
  const std::uint64_t total = open()->bytes();
  const auto cache = open(total - 1);
  EXPECT_EQ(reach(*cache, counting(0, 100)), 40) << "the older leaf went, and not its parent, which is older";
  EXPECT_EQ(reach(*cache, counting(5000, 100)), 40);
}

TEST_F(DiskCacheTest, ADamagedFileIsFoundAndDeletedWithWhatStandsOnIt) {
  write({counting(0, 40), counting(0, 80), counting(5000, 40)});
  const fs::path damaged = file(80).parent_path() / file(80).filename();
  const std::string whole = test::read_file(damaged);
  // Any byte: of the header it is found when the folder is read, of the rest when the file is loaded.
  for (std::size_t at = 0; at < whole.size(); ++at) {
    test::write_file(damaged, whole);
    flip_byte(damaged, at);
    const auto cache = open();
    const auto loaded = load(*cache, counting(0, 100));
    ASSERT_TRUE(loaded == nullptr || loaded->position() == 40) << "byte " << at;
    ASSERT_EQ(reach(*cache, counting(0, 100)), 40) << "byte " << at;
    ASSERT_TRUE(at < 8 || !fs::exists(damaged)) << "byte " << at;
    ASSERT_NE(log_, "") << "byte " << at;
    log_.clear();
  }
  test::write_file(damaged, whole);
  flip_byte(file(40), fs::file_size(file(40)) - 40);
  const auto cache = open();
  EXPECT_EQ(load(*cache, counting(0, 100)), nullptr);
  EXPECT_EQ(reach(*cache, counting(0, 100)), 0);
  EXPECT_EQ(files().size(), 1U) << "and nothing but the other conversation is left";
  EXPECT_NE(log_.find("checksum"), std::string::npos) << log_;
}

TEST_F(DiskCacheTest, AFileThatEndsEarlyIsDeleted) {
  write({counting(0, 40)});
  const fs::path path = file(40);
  const std::string whole = test::read_file(path);
  for (std::size_t size = 8; size < whole.size(); size += 3) {
    test::write_file(path, std::string_view(whole).substr(0, size));
    EXPECT_EQ(open()->entries(), 0U) << size;
    EXPECT_FALSE(fs::exists(path)) << size;
  }
}

TEST_F(DiskCacheTest, AFileThatThereIsNoMemoryForStays) {
  write({counting(0, 40)});
  const auto cache = open();
  record_->at_load = [] { throw OutOfMemory("the GPU", "has no room"); };
  EXPECT_THROW(load(*cache, counting(0, 60)), OutOfMemory);
  record_->at_load = {};
  EXPECT_NE(load(*cache, counting(0, 60)), nullptr);
  EXPECT_EQ(log_, "");
}

TEST_F(DiskCacheTest, AKilledWriterLosesTheFileBeingWrittenAndNoOther) {
  write({counting(0, 40)});
  const fs::path half = folder_.path() / "calla-0123456789abcdef-80.snapshot.partial";
  test::write_file(half, test::read_file(file(40)).substr(0, 300));
  const auto cache = open();
  EXPECT_EQ(cache->entries(), 1U);
  EXPECT_FALSE(fs::exists(half));
  EXPECT_NE(load(*cache, counting(0, 60)), nullptr);
  EXPECT_NE(log_.find("half-written"), std::string::npos);
}

TEST_F(DiskCacheTest, WhatIsNotOursIsNotTouched) {
  test::write_file(folder_.path() / "notes.txt", "mine");
  test::write_file(folder_.path() / "calla-holiday.snapshot", "a picture of flowers");
  const auto cache = open();
  EXPECT_EQ(cache->entries(), 0U);
  EXPECT_EQ(files().size(), 2U);
  EXPECT_NE(log_.find("notes.txt is not ours"), std::string::npos) << log_;
}

TEST_F(DiskCacheTest, FilesOfAnotherModelAreNotUsedAndMakeRoom) {
  write({counting(0, 40)});
  const std::uint64_t one = fs::file_size(file(40));
  {
    const auto other = open(1 << 20, "model 2");
    EXPECT_EQ(reach(*other, counting(0, 60)), 0);
    EXPECT_EQ(other->bytes(), one) << "but it takes its room";
    EXPECT_NE(log_.find("another model or version"), std::string::npos);
  }
  EXPECT_EQ(reach(*open(), counting(0, 60)), 40) << "its own model finds it again";
  {
    const auto other = open(5900, "model 2");
    other->offer(counting(7, 40), snapshot(counting(7, 40)));
    EXPECT_EQ(reach(*other, counting(7, 20)), 0);
  }
  EXPECT_EQ(open(5900, "model 2")->entries(), 1U);
  EXPECT_EQ(open()->entries(), 0U) << "its file made room";
}

TEST_F(DiskCacheTest, AFileWhoseParentIsGoneIsDeleted) {
  write({counting(0, 40), counting(0, 80)});
  fs::remove(file(40));
  EXPECT_EQ(open()->entries(), 0U);
  EXPECT_TRUE(files().empty());
}

TEST_F(DiskCacheTest, OneFolderServesOneProcess) {
  const auto cache = open();
  EXPECT_NE(test::message_of([&] { open(); }).find("in use by another process"), std::string::npos);
}

TEST_F(DiskCacheTest, AFolderThatCannotBeMadeIsAnError) {
  test::write_file(folder_.path() / "file", "");
  EXPECT_NE(test::message_of([&] {
              DiskCache(folder_.path() / "file" / "cache", 1000, "model 1", {});
            }).find("--cache-dir"),
            std::string::npos);
}

}  // namespace
}  // namespace calla
