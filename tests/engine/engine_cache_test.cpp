// The engine with its prefix cache, on a backend that notices every wrong prefix.
#include <functional>
#include <thread>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "fake_backend.h"
#include "requests.h"
#include "support/support.h"

namespace calla {
namespace {

using test::counting;
using test::FakeBackend;
using test::joined;
using test::Outcome;
using test::request;
using test::run;

class EngineCacheTest : public testing::Test {
 protected:
  Engine& engine(EngineOptions options = {.cache_memory = 1 << 20}, int slots = 1) {
    engine_.reset();
    engine_ = std::make_unique<Engine>(std::make_unique<FakeBackend>(slots, 1'000'000, record_),
                                       std::move(options));
    return *engine_;
  }
  /// A request whose messages begin at some positions.
  static GenerationRequest turn(std::vector<Token> prompt, std::vector<int> boundaries, int max_tokens = 1) {
    GenerationRequest r = request(std::move(prompt), max_tokens);
    r.boundaries = std::move(boundaries);
    return r;
  }
  /// Tokens that the backend read since the last call.
  int read() {
    const int now = record_->prefilled;
    return now - std::exchange(seen_, now);
  }
  static void wait_until(const std::function<bool()>& done) {
    while (!done()) std::this_thread::yield();
  }

  std::shared_ptr<FakeBackend::Record> record_ = std::make_shared<FakeBackend::Record>();
  test::TemporaryFolder folder_;
  std::string log_;
  std::unique_ptr<Engine> engine_;  // after what it calls
  int seen_ = 0;
};

TEST_F(EngineCacheTest, ASecondAnswerReadsTheEndOfThePromptOnly) {
  Engine& e = engine();
  const Outcome cold = run(e, request(counting(0, 41), 5));
  EXPECT_EQ(cold.finished.cached_tokens, 0);
  EXPECT_EQ(cold.finished.cache_note, "nothing cached begins like it");
  EXPECT_EQ(read(), 41);
  const Outcome cached = run(e, request(counting(0, 41), 5));
  EXPECT_EQ(cached.tokens, cold.tokens);
  EXPECT_EQ(cached.finished.cached_tokens, 38);
  EXPECT_EQ(cached.finished.cache_note, "");
  EXPECT_EQ(cached.progress, (std::vector<int>{38, 41}));
  EXPECT_EQ(read(), 3);
  const EngineStats stats = e.stats();
  EXPECT_EQ(stats.prompt_tokens, 82U);
  EXPECT_EQ(stats.cached_tokens, 38U);
  EXPECT_EQ(stats.generated_tokens, 10U);
  EXPECT_EQ(stats.cache_hits, 1U);
  EXPECT_EQ(stats.cache_misses.at(static_cast<std::size_t>(CacheMiss::empty)), 1U);
  EXPECT_EQ(stats.finished.at(static_cast<std::size_t>(GenerationEnd::length)), 2U);
  EXPECT_GT(stats.cache_bytes, FakeBackend::state_bytes);
  EXPECT_LE(stats.cache_bytes, stats.cache_limit);
}

TEST_F(EngineCacheTest, WithoutACacheNothingIsKept) {
  Engine& e = engine({});
  run(e, request(counting(0, 41), 1));
  const Outcome again = run(e, request(counting(0, 41), 1));
  EXPECT_EQ(again.finished.cached_tokens, 0);
  EXPECT_EQ(read(), 82);
  EXPECT_EQ(record_->snapshots, 0);
  EXPECT_EQ(e.stats().cache_misses.at(static_cast<std::size_t>(CacheMiss::off)), 2U);
}

TEST_F(EngineCacheTest, TheLastMessageEditedReadsThatMessage) {
  Engine& e = engine();
  run(e, turn(counting(0, 100), {40, 80}));
  read();
  const Outcome edited = run(e, turn(joined({counting(0, 80), counting(500, 30)}), {40, 80}));
  EXPECT_EQ(edited.finished.cached_tokens, 80);
  EXPECT_EQ(edited.finished.cache_note, "first difference at token 80 of a cached prompt of 98");
  EXPECT_EQ(read(), 30);
  EXPECT_EQ(run(e, turn(counting(0, 100), {40, 80})).finished.cached_tokens, 98)
      << "the first one is still there";
}

TEST_F(EngineCacheTest, AConversationGoesOnAndBranches) {
  Engine& e = engine();
  std::vector<Token> conversation = counting(0, 30);
  std::vector<int> boundaries;
  for (int i = 1; i <= 5; ++i) {
    boundaries.push_back(static_cast<int>(conversation.size()));
    conversation = joined({conversation, counting(i * 1000, 30)});
    const Outcome outcome = run(e, turn(conversation, boundaries));
    EXPECT_EQ(outcome.finished.cached_tokens, i == 1 ? 0 : 30 * i - 2) << "turn " << i;
  }
  read();
  // Another third message: all before it is there.
  const Outcome branch =
      run(e, turn(joined({counting(0, 30), counting(1000, 30), counting(77'000, 30)}), {30, 60}));
  EXPECT_EQ(branch.finished.cached_tokens, 60);
  EXPECT_EQ(read(), 30);
}

TEST_F(EngineCacheTest, ASideRequestUsesTheCacheAndLeavesItAlone) {
  Engine& e = engine({.cache_memory = 3 * (FakeBackend::state_bytes + 500 + 20 * FakeBackend::block_bytes)});
  run(e, turn(counting(0, 100), {50}));
  const EngineStats before = e.stats();
  for (int i = 0; i < 50; ++i) {
    GenerationRequest title = turn(joined({counting(0, 100), counting(1000 * i, 60)}), {100});
    title.side_request = true;
    title.reply_continues = true;
    EXPECT_EQ(run(e, std::move(title)).finished.cached_tokens, 98);
  }
  EXPECT_EQ(e.stats().cache_entries, before.cache_entries);
  EXPECT_EQ(e.stats().cache_bytes, before.cache_bytes);
  EXPECT_EQ(run(e, turn(counting(0, 130), {50, 100})).finished.cached_tokens, 98);
}

TEST_F(EngineCacheTest, ThePoolStaysBelowItsLimitAndSaysWhatItEvicted) {
  constexpr std::uint64_t limit = 10'000;
  Engine& e = engine({.cache_memory = limit});
  for (int i = 0; i < 20; ++i) {
    run(e, turn(counting(1000 * i, 80), {40}));
    EXPECT_LE(e.stats().cache_bytes, limit);
  }
  EXPECT_GT(e.stats().cache_evictions, 10U);
  const Outcome gone = run(e, turn(counting(0, 80), {40}));
  EXPECT_EQ(gone.finished.cached_tokens, 0);
  EXPECT_EQ(gone.finished.cache_note, "the state after 78 tokens had to make room");
  EXPECT_EQ(e.stats().cache_misses.at(static_cast<std::size_t>(CacheMiss::evicted)), 1U);
}

TEST_F(EngineCacheTest, AReplyIsReadInAdvanceForTheNextTurn) {
  Engine& e = engine();
  GenerationRequest first = turn(counting(0, 30), {10}, 40);
  first.reply_continues = true;
  first.sampling.end_tokens = {50};
  EXPECT_EQ(run(e, std::move(first)).finished.end, GenerationEnd::stop);
  // 30 of the prompt, 20 of the reply, its end token.
  wait_until([&] { return e.stats().cache_entries == 3; });
  read();
  const Outcome next = run(e, turn(counting(0, 80), {10, 30, 51}));
  EXPECT_EQ(next.finished.cached_tokens, 50);
  EXPECT_EQ(read(), 30);
}

TEST_F(EngineCacheTest, AReplyThatTheNextPromptWillNotHoldIsNotRead) {
  Engine& e = engine();
  run(e, turn(counting(0, 30), {10}, 40));
  read();
  EXPECT_EQ(run(e, turn(counting(0, 80), {10, 30, 70})).finished.cached_tokens, 28);
  EXPECT_EQ(read(), 52) << "nothing was read in between";
}

TEST_F(EngineCacheTest, ReadingInAdvanceMakesWayAndKeepsWhatItHas) {
  std::atomic<int> pieces{0};
  std::atomic<bool> go{false};
  // The fourth piece is the first one of the reading in advance: it waits until the next request is there.
  record_->at_prefill = [&](int) {
    if (++pieces == 4) wait_until([&] { return go.load(); });
  };
  Engine& e = engine();
  GenerationRequest first = turn(counting(0, 10), {}, 4000);
  first.reply_continues = true;
  ASSERT_EQ(run(e, std::move(first)).finished.end, GenerationEnd::length);
  wait_until([&] { return pieces == 4; });
  auto second = e.start(turn(counting(0, 5000), {}));
  go = true;
  const Outcome outcome = test::read_all(*second);
  EXPECT_EQ(outcome.finished.end, GenerationEnd::length);
  EXPECT_EQ(outcome.finished.cached_tokens, 12) << "one piece of the reply had been read";
  engine_.reset();  // it may be reading on, and what it calls is about to end
}

TEST_F(EngineCacheTest, AnswersToOnePromptShareItsReading) {
  std::atomic<bool> go{false};
  record_->at_prefill = [&](int) { wait_until([&] { return go.load(); }); };
  Engine& e = engine({.cache_memory = 1 << 20}, 4);
  std::vector<std::unique_ptr<Generation>> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(e.start(request(counting(0, 101), 20)));
  // And one that shares half of it, and comes too late to ask for a state there.
  auto other = e.start(request(joined({counting(0, 50), counting(7000, 50)}), 20));
  go = true;
  int cached = 0;
  for (const auto& answer : answers) {
    const Outcome outcome = test::read_all(*answer);
    EXPECT_EQ(outcome.tokens, counting(101, 20));
    cached += outcome.finished.cached_tokens;
  }
  EXPECT_EQ(cached, 3 * 98);
  EXPECT_EQ(test::read_all(*other).tokens, counting(7050, 20));
  EXPECT_EQ(read(), 101 + 3 * 3 + 100);
}

TEST_F(EngineCacheTest, PromptsThatShareTheirBeginningReadItOnce) {
  std::atomic<bool> go{false};
  record_->at_prefill = [&](int) { wait_until([&] { return go.load(); }); };
  Engine& e = engine({.cache_memory = 1 << 20}, 3);
  std::vector<std::unique_ptr<Generation>> agents;
  for (const Token task : {1000, 2000, 3000})
    agents.push_back(e.start(request(joined({counting(0, 200), counting(task, 30)}), 1)));
  go = true;
  for (const auto& agent : agents) EXPECT_EQ(test::read_all(*agent).finished.end, GenerationEnd::length);
  EXPECT_EQ(read(), 200 + 3 * 30);
}

TEST_F(EngineCacheTest, WhoWaitsForAnotherPromptGoesOnWhenThatIsCancelled) {
  std::atomic<bool> go{false};
  record_->at_prefill = [&](int) { wait_until([&] { return go.load(); }); };
  Engine& e = engine({.cache_memory = 1 << 20}, 2);
  auto first = e.start(request(counting(0, 100'000), 20));
  auto second = e.start(request(counting(0, 101), 20));
  first->cancel();
  go = true;
  EXPECT_EQ(test::read_all(*second).tokens, counting(101, 20));
  EXPECT_EQ(test::read_all(*first).finished.end, GenerationEnd::cancelled);
}

TEST_F(EngineCacheTest, StatesOutliveTheEngine) {
  const EngineOptions options{.cache_memory = 1 << 20,
                              .cache_dir = folder_.path(),
                              .model_id = "demo 1",
                              .log = [this](const std::string& line) { log_ += line; }};
  run(engine(options), turn(counting(0, 100), {60}));
  read();
  const Outcome again = run(engine(options), turn(counting(0, 120), {60, 100}));
  EXPECT_EQ(again.finished.cached_tokens, 98);
  EXPECT_EQ(again.finished.cache_note, "");
  EXPECT_EQ(read(), 22);
  // A branch finds the file in the middle; a third engine finds what the second one added.
  EXPECT_EQ(
      run(engine(options), turn(joined({counting(0, 60), counting(900, 40)}), {60})).finished.cached_tokens,
      60);
  EXPECT_EQ(run(engine(options), turn(counting(0, 120), {60, 100})).finished.cached_tokens, 118);
  EXPECT_GT(engine_->stats().disk_entries, 2U);
  EXPECT_GT(engine_->stats().disk_bytes, 1000U);
  EXPECT_EQ(log_, "");

  EngineOptions other = options;
  other.model_id = "demo 2";
  EXPECT_EQ(run(engine(other), turn(counting(0, 120), {60, 100})).finished.cached_tokens, 0);
  EXPECT_NE(log_.find("another model or version"), std::string::npos);
}

TEST_F(EngineCacheTest, ADamagedFileCostsReadingAndNoAnswer) {
  const EngineOptions options{.cache_memory = 1 << 20,
                              .cache_dir = folder_.path(),
                              .log = [this](const std::string& line) { log_ += line; }};
  run(engine(options), turn(counting(0, 100), {60}));
  engine_.reset();
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (!entry.path().string().ends_with("-98.snapshot")) continue;
    std::string bytes = test::read_file(entry.path());
    bytes[bytes.size() - 30] ^= 1;  // in the payload
    test::write_file(entry.path(), bytes);
  }
  const Outcome again = run(engine(options), turn(counting(0, 120), {60, 100}, 5));
  EXPECT_EQ(again.finished.end, GenerationEnd::length);
  EXPECT_EQ(again.tokens, counting(120, 5));
  EXPECT_EQ(again.finished.cached_tokens, 60) << "the file before it is sound";
  EXPECT_NE(log_.find("checksum differs"), std::string::npos) << log_;
}

TEST_F(EngineCacheTest, TwoConversationsNeverMeet) {
  Engine& e = engine({.cache_memory = 12'000}, 2);
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (const Token base : {10'000, 20'000}) {
    clients.emplace_back([&, base] {
      for (int round = 0; round < 100; ++round) {
        // The backend throws where a prompt is not what its slot has read.
        const auto prompt = joined({counting(0, 20), {base}, counting(100, 20 + round % 7), {base + round}});
        GenerationRequest r = turn(prompt, {20, 30}, 3);
        r.reply_continues = round % 2 == 0;
        const Outcome outcome = run(e, std::move(r));
        if (outcome.tokens == counting(base + round + 1, 3) && outcome.finished.cached_tokens <= 48) ++right;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 200);
}

TEST_F(EngineCacheTest, WithoutMemoryForAFileThePromptIsRead) {
  const EngineOptions options{.cache_memory = 1 << 20, .cache_dir = folder_.path()};
  run(engine(options), request(counting(0, 41), 1));
  read();
  EngineOptions again = options;
  again.log = [this](const std::string& line) { log_ += line; };
  Engine& e = engine(again);
  record_->at_load = [] { throw OutOfMemory("the GPU", "has no room"); };
  EXPECT_EQ(run(e, request(counting(0, 41), 1)).finished.end, GenerationEnd::length);
  EXPECT_EQ(read(), 41);
  engine_.reset();
  EXPECT_EQ(log_, "cache: a state is not loaded: the GPU: has no room");
}

}  // namespace
}  // namespace calla
