// What becomes of requests when the backend cannot do what one of them asks, or anything.
#include <latch>
#include <memory>

#include <gtest/gtest.h>

#include "base/error.h"
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

OutOfMemory no_room(int slot = -1) {
  OutOfMemory fault("the GPU", "has no room");
  fault.set_slot(slot);
  return fault;
}

class EngineFaultTest : public testing::Test {
 protected:
  Engine& engine(int slots, EngineOptions options = {}) {
    engine_ = std::make_unique<Engine>(std::make_unique<FakeBackend>(slots, 1000, record_), options);
    return *engine_;
  }
  /// Two requests at once, of which the one in slot 1 may fail. The first one waits for the second.
  std::pair<Outcome, Outcome> run_two(Engine& engine) {
    const auto both = std::make_shared<std::latch>(1);
    record_->at_collect = [both, steps = 0]() mutable {
      if (++steps == 2) both->wait();
    };
    auto first = engine.start(request(counting(1, 6), 300));
    first->next();  // it has slot 0
    auto second = engine.start(request(counting(500, 6), 300));
    both->count_down();
    Outcome failed = read_all(*second);
    return {read_all(*first), std::move(failed)};
  }

  std::shared_ptr<FakeBackend::Record> record_ = std::make_shared<FakeBackend::Record>();
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineFaultTest, APromptThatThereIsNoMemoryForFailsAlone) {
  record_->at_prefill = [](int slot) {
    if (slot == 1) throw no_room();
  };
  Engine& e = engine(2);
  const auto [first, second] = run_two(e);
  EXPECT_EQ(second.finished.end, GenerationEnd::failed);
  EXPECT_EQ(second.finished.error, "the GPU: has no room");
  EXPECT_EQ(first.tokens, counting(7, 300));
  EXPECT_EQ(first.finished.end, GenerationEnd::length);
  EXPECT_EQ(record_->abandoned, 0);
  EXPECT_EQ(e.lost(), std::nullopt);
}

TEST_F(EngineFaultTest, AFaultWhileAPromptIsReadIsThatRequestsAlone) {
  record_->at_prefill = [](int slot) {
    if (slot == 1) throw std::runtime_error("a piece failed");
  };
  Engine& e = engine(2);
  const auto [first, second] = run_two(e);
  EXPECT_EQ(second.finished.error, "a piece failed");
  EXPECT_EQ(first.tokens, counting(7, 300));
  record_->at_prefill = {};
  EXPECT_EQ(run(e, request({5}, 2)).tokens, counting(6, 2)) << "its slot serves the next one";
}

TEST_F(EngineFaultTest, AnAnswerThatThereIsNoMemoryForFailsAlone) {
  int steps = 0;
  record_->at_submit = [&](int slot) {
    if (slot == 1 && ++steps > 5) throw no_room(slot);
  };
  Engine& e = engine(2);
  const auto [first, second] = run_two(e);
  EXPECT_EQ(second.finished.end, GenerationEnd::failed);
  EXPECT_EQ(second.finished.error, "the GPU: has no room");
  EXPECT_EQ(second.tokens, counting(506, 5)) << "what was drawn before is told";
  EXPECT_EQ(first.tokens, counting(7, 300));
  EXPECT_EQ(record_->abandoned, 0);
  steps = -1000;
  EXPECT_EQ(run_two(e).second.tokens, counting(506, 300)) << "its slot serves the next one";
}

TEST_F(EngineFaultTest, AValueThatIsNotANumberFailsItsAnswerAlone) {
  int steps = 0;
  record_->fault_of = [&](int slot) { return slot == 1 && ++steps > 5 ? "not a number" : ""; };
  Engine& e = engine(2);
  const auto [first, second] = run_two(e);
  EXPECT_EQ(second.finished.end, GenerationEnd::failed);
  EXPECT_EQ(second.finished.error, "not a number");
  EXPECT_EQ(second.tokens, counting(506, 5)) << "what was drawn before is told";
  EXPECT_EQ(first.tokens, counting(7, 300));
  EXPECT_EQ(first.finished.end, GenerationEnd::length);
  EXPECT_EQ(record_->abandoned, 0);
  EXPECT_EQ(e.stats().generated_tokens, 305U);
  record_->fault_of = {};
  EXPECT_EQ(run_two(e).second.tokens, counting(506, 300)) << "its slot serves the next one";
}

TEST_F(EngineFaultTest, AStepThatNoSlotIsToBlameForFailsWhatRuns) {
  int steps = 0;
  record_->at_submit = [&](int) {
    if (++steps == 4) throw no_room();
  };
  Engine& e = engine(1);
  EXPECT_EQ(run(e, request({1}, 100)).finished.end, GenerationEnd::failed);
  EXPECT_EQ(run(e, request({5}, 2)).tokens, counting(6, 2));
}

TEST_F(EngineFaultTest, TheCacheGivesWay) {
  Engine& e = engine(1, {.cache_memory = 1 << 20});
  for (const Token first : {0, 100, 200}) run(e, request(counting(first, 20), 1));
  ASSERT_EQ(e.stats().cache_entries, 3U);
  bool short_of_memory = true;
  record_->at_prefill = [&](int) {
    if (short_of_memory && e.stats().cache_entries > 1) throw no_room();
    short_of_memory = false;
  };
  const Outcome outcome = run(e, request(counting(300, 20), 3));
  EXPECT_EQ(outcome.tokens, counting(320, 3));
  EXPECT_EQ(e.stats().cache_evictions, 2U) << "no more than it had to";

  int asked = 0;
  record_->at_submit = [&](int slot) {
    ++asked;
    throw no_room(slot);
  };
  EXPECT_EQ(run(e, request(counting(400, 20), 3)).finished.end, GenerationEnd::failed);
  EXPECT_EQ(e.stats().cache_entries, 0U) << "all of it, before a request fails";
  EXPECT_EQ(asked, 4) << "once with each of the states that were kept, and once without any";
}

TEST_F(EngineFaultTest, ALostDeviceEndsEverythingAtOnce) {
  std::latch both(1);
  record_->at_collect = [&] {
    if (record_->steps < 3) return;
    both.wait();
    throw DeviceLost("the GPU", "is lost");
  };
  Engine& e = engine(1);
  auto running = e.start(request({1}, 100));
  auto waiting = e.start(request({500}, 100));
  both.count_down();
  const Outcome first = read_all(*running);
  EXPECT_EQ(first.finished.end, GenerationEnd::failed);
  EXPECT_EQ(first.finished.error, "the GPU: is lost");
  const Outcome second = read_all(*waiting);
  EXPECT_EQ(second.finished.end, GenerationEnd::failed);
  EXPECT_EQ(second.finished.error, "the GPU: is lost");
  EXPECT_EQ(e.lost(), "the GPU: is lost");
  EXPECT_THROW(e.start(request({1}, 1)), DeviceLost);
  EXPECT_EQ(e.stats().waiting, 0);
  EXPECT_EQ(e.stats().busy, 0);
}

TEST_F(EngineFaultTest, ADeviceLostWhileAPromptIsReadIsNoFaultOfThePrompt) {
  record_->at_prefill = [](int) { throw DeviceLost("the GPU", "is lost"); };
  Engine& e = engine(2);
  EXPECT_EQ(run(e, request({1}, 1)).finished.error, "the GPU: is lost");
  EXPECT_EQ(e.lost(), "the GPU: is lost");
}

}  // namespace
}  // namespace calla
