// Who waits for whom, and for how long.
#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "fake_backend.h"
#include "requests.h"

namespace calla {
namespace {

using test::counting;
using test::FakeBackend;
using test::Outcome;
using test::read_all;
using test::request;
using test::run;

class ScheduleTest : public testing::Test {
 protected:
  Engine& engine(int slots, int chunk = 4, EngineOptions options = {}) {
    engine_ = std::make_unique<Engine>(std::make_unique<FakeBackend>(slots, 10'000'000, record_, chunk),
                                       std::move(options));
    return *engine_;
  }
  /// An answer that goes on until it is cancelled.
  std::unique_ptr<Generation> endless() {
    auto answer = engine_->start(request({1}, 9'000'000));
    answer->next();
    answer->next();
    return answer;
  }

  std::shared_ptr<FakeBackend::Record> record_ = std::make_shared<FakeBackend::Record>();
  std::unique_ptr<Engine> engine_;
};

TEST_F(ScheduleTest, PiecesAreShortBesideAnAnswerAndLongOtherwise) {
  Engine& e = engine(2, 64);
  EXPECT_EQ(run(e, request(counting(0, 640), 1)).progress.size(), 10U);
  const auto answer = endless();
  EXPECT_EQ(run(e, request(counting(0, 640), 1)).progress.size(), 80U);
  EXPECT_LE(record_->largest_piece_beside_an_answer, 8);
}

TEST_F(ScheduleTest, PromptsTakeTurnsWhateverTheirLength) {
  std::vector<int> order;  // slots, by piece
  std::atomic<bool> go{false};
  record_->at_prefill = [&](int slot) {
    while (!go) std::this_thread::yield();
    order.push_back(slot);
  };
  Engine& e = engine(3);
  auto first = e.start(request(counting(0, 4000), 1));
  auto second = e.start(request(counting(50'000, 4000), 1));
  auto third = e.start(request(counting(90'000, 40), 1));
  go = true;
  EXPECT_EQ(read_all(*third).tokens, (std::vector<Token>{90'040}));
  EXPECT_EQ(read_all(*first).tokens, (std::vector<Token>{4000}));
  EXPECT_EQ(read_all(*second).tokens, (std::vector<Token>{54'000}));
  // Ten pieces of the short one, and between two of them no more than one of each other.
  int short_ones = 0;
  for (int slot = 0; slot < 3; ++slot) {
    if (std::count(order.begin(), order.end(), slot) != 10) continue;
    ++short_ones;
    const auto last = std::find(order.rbegin(), order.rend(), slot);
    EXPECT_LE(order.rend() - last, 30);
  }
  EXPECT_EQ(short_ones, 1);
}

TEST_F(ScheduleTest, AFullQueueRefusesAndSaysSo) {
  Engine& e = engine(1, 4, {.queue_limit = 2});
  auto running = endless();
  auto second = e.start(request({1}, 1));
  auto third = e.start(request({1}, 1));
  try {
    e.start(request({1}, 1));
    FAIL() << "a third one waits";
  } catch (const QueueFull& full) {
    EXPECT_EQ(full.waiting(), 2);
    EXPECT_GE(full.retry_after().count(), 1);
    EXPECT_LE(full.retry_after().count(), 600);
    EXPECT_NE(std::string(full.what()).find("2 requests wait"), std::string::npos) << full.what();
  }
  EngineStats stats = e.stats();
  EXPECT_EQ(stats.refused, 1U);
  EXPECT_EQ(stats.waiting, 2);
  EXPECT_EQ(stats.busy, 1);
  EXPECT_EQ(stats.slots, 1);
  running->cancel();
  EXPECT_EQ(read_all(*third).tokens, (std::vector<Token>{2}));
  EXPECT_EQ(run(e, request({1}, 1)).tokens, (std::vector<Token>{2})) << "an ended request leaves its place";
  read_all(*second);
  stats = e.stats();
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.busy, 0);
}

TEST_F(ScheduleTest, WithoutAQueueAFreeSlotIsStillServed) {
  Engine& e = engine(2, 4, {.queue_limit = 0});
  for (int i = 0; i < 50; ++i) EXPECT_EQ(run(e, request({1}, 1)).tokens, (std::vector<Token>{2}));
  auto first = e.start(request({1}, 9'000'000));
  auto second = e.start(request({1}, 9'000'000));
  EXPECT_THROW(e.start(request({1}, 1)), QueueFull);
}

TEST_F(ScheduleTest, CancellingAPromptEndsItWithinAPiece) {
  std::atomic<int> pieces{0};
  std::atomic<bool> go{false};
  record_->at_prefill = [&](int) {
    if (++pieces == 3) {
      while (!go) std::this_thread::yield();
    }
  };
  Engine& e = engine(1, 4, {.cache_memory = 1 << 20});
  auto generation = e.start(request(counting(0, 4000), 1));
  while (pieces < 3) std::this_thread::yield();
  generation->cancel();
  go = true;
  EXPECT_EQ(read_all(*generation).finished.end, GenerationEnd::cancelled);
  EXPECT_EQ(record_->prefill_calls, 3);
}

TEST_F(ScheduleTest, CancellingAnAnswerEndsItWithinTheStepsUnderWay) {
  Engine& e = engine(1);
  auto generation = endless();
  generation->cancel();
  read_all(*generation);
  const int steps = record_->steps;
  run(e, request({1}, 1));
  EXPECT_EQ(record_->steps, steps + 1) << "no step was spent on it after its end";
}

TEST_F(ScheduleTest, TheEndOfTheEngineEndsEverything) {
  engine(1, 4, {.cache_memory = 1 << 20});
  auto running = endless();
  auto waiting = engine_->start(request({1}, 1));
  engine_.reset();
  EXPECT_EQ(read_all(*running).finished.end, GenerationEnd::cancelled);
  EXPECT_EQ(read_all(*waiting).finished.end, GenerationEnd::cancelled);
}

}  // namespace
}  // namespace calla
