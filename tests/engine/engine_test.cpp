#include "engine/engine.h"

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fake_backend.h"
#include "requests.h"

namespace calla {
namespace {

using test::counting;
using test::FakeBackend;
using test::Outcome;
using test::read_all;
using test::request;

class EngineTest : public testing::Test {
 protected:
  Engine& engine(int slots = 1, int context = 1000) {
    engine_ = std::make_unique<Engine>(std::make_unique<FakeBackend>(slots, context, record_));
    return *engine_;
  }
  Outcome run(Engine& engine, GenerationRequest request) {
    return read_all(*engine.start(std::move(request)));
  }

  std::shared_ptr<FakeBackend::Record> record_ = std::make_shared<FakeBackend::Record>();
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, EndsAtAnEndTokenWithoutGivingIt) {
  const Outcome outcome = run(engine(), request({5}, 100, {9}));
  EXPECT_EQ(outcome.tokens, (std::vector<Token>{6, 7, 8}));
  EXPECT_EQ(outcome.finished.end, GenerationEnd::stop);
  EXPECT_EQ(outcome.finished.end_token, 9);
}

TEST_F(EngineTest, EndsAtMaxTokens) {
  const Outcome outcome = run(engine(), request({5}, 3));
  EXPECT_EQ(outcome.tokens, (std::vector<Token>{6, 7, 8}));
  EXPECT_EQ(outcome.finished.end, GenerationEnd::length);
  EXPECT_EQ(record_->steps, 3) << "no step is spent on a token nobody asked for";
}

TEST_F(EngineTest, EndsWhereTheContextEnds) {
  const Outcome outcome = run(engine(1, 10), request({1, 2, 3, 4}, 500));
  EXPECT_EQ(outcome.tokens, counting(5, 6));
  EXPECT_EQ(outcome.finished.end, GenerationEnd::length);
}

TEST_F(EngineTest, ReadsALongPromptInChunksAndReportsThem) {
  const Outcome outcome = run(engine(), request(counting(100, 10), 2));
  EXPECT_EQ(outcome.tokens, (std::vector<Token>{110, 111}));
  EXPECT_EQ(outcome.progress, (std::vector<int>{4, 8, 10}));
  EXPECT_EQ(record_->prefill_calls, 3);
}

TEST_F(EngineTest, SubmitsAStepBeforeTheOneBeforeIsRead) {
  run(engine(), request({1}, 20));
  EXPECT_EQ(record_->deepest, 2);
}

TEST_F(EngineTest, RefusesWhatCannotBeServed) {
  Engine& e = engine(1, 10);
  EXPECT_THROW(e.start(request({})), RequestError);
  EXPECT_THROW(e.start(request({1}, 0)), RequestError);
  try {
    e.start(request(counting(1, 10)));
    FAIL() << "a prompt that fills the context was accepted";
  } catch (const RequestError& fault) {
    EXPECT_EQ(fault.code(), "context_length_exceeded");
    EXPECT_NE(std::string(fault.what()).find("has 10 tokens"), std::string::npos) << fault.what();
  }
}

TEST_F(EngineTest, SlotsDecodeTogetherAndDoNotMix) {
  Engine& e = engine(4);
  std::vector<std::unique_ptr<Generation>> generations;
  for (Token first = 1000; first <= 8000; first += 1000)
    generations.push_back(e.start(request({first}, 200)));
  for (std::size_t i = 0; i < generations.size(); ++i) {
    const Token first = static_cast<Token>(i + 1) * 1000;
    EXPECT_EQ(read_all(*generations[i]).tokens, counting(first + 1, 200));
  }
  EXPECT_GE(record_->largest_batch, 2);
  EXPECT_LE(record_->largest_batch, 4);
}

TEST_F(EngineTest, ARunningAnswerFlowsWhileAnotherPromptIsRead) {
  Engine& e = engine(2, 10'000'000);
  auto answer = e.start(request({1}, 9'000'000));
  for (int i = 0; i < 5; ++i) answer->next();
  // The long prompt needs 500 chunks; the running answer gets a step after each.
  EXPECT_EQ(run(e, request(counting(1, 2000), 1)).progress.size(), 500U);
  EXPECT_EQ(record_->most_chunks_in_a_row, 1);
}

TEST_F(EngineTest, CancellingEndsItWithinAStep) {
  Engine& e = engine(1, 10'000'000);
  auto generation = e.start(request({1}, 9'000'000));
  for (int i = 0; i < 3; ++i) generation->next();
  generation->cancel();
  EXPECT_EQ(read_all(*generation).finished.end, GenerationEnd::cancelled);
  EXPECT_EQ(run(e, request({5}, 1)).tokens, (std::vector<Token>{6})) << "the slot serves the next request";
}

TEST_F(EngineTest, CancellingEndsALongPromptWithinAChunk) {
  Engine& e = engine(1, 10'000'000);
  auto generation = e.start(request(counting(1, 4'000'000), 1));
  generation->next();
  generation->cancel();
  EXPECT_EQ(read_all(*generation).finished.end, GenerationEnd::cancelled);
  EXPECT_LT(record_->prefill_calls, 1'000'000);
}

TEST_F(EngineTest, ARequestThatWaitsCanBeCancelled) {
  Engine& e = engine(1, 10'000'000);
  auto running = e.start(request({1}, 9'000'000));
  auto waiting = e.start(request({1}, 1));
  waiting->cancel();
  const Outcome outcome = read_all(*waiting);
  EXPECT_EQ(outcome.finished.end, GenerationEnd::cancelled);
  EXPECT_TRUE(outcome.tokens.empty());
  EXPECT_TRUE(outcome.progress.empty());
}

TEST_F(EngineTest, AForgottenGenerationIsCancelled) {
  Engine& e = engine(1, 10'000'000);
  e.start(request({1}, 9'000'000))->next();
  EXPECT_EQ(run(e, request({5}, 1)).tokens, (std::vector<Token>{6}));
}

TEST_F(EngineTest, TheBudgetClosesTheReasoningAndLetsTheAnswerBegin) {
  GenerationRequest r = request({100}, 12);
  r.budget = ThinkingBudget{.tokens = 4, .end = 50, .closing = {49, 50, 51}};
  const Outcome outcome = run(engine(), r);
  EXPECT_EQ(outcome.tokens, (std::vector<Token>{101, 102, 103, 104, 49, 50, 51, 52, 53, 54, 55, 56}));
  EXPECT_EQ(outcome.forced, (std::vector<Token>{49, 50, 51}));
  EXPECT_EQ(outcome.finished.end, GenerationEnd::length);
}

TEST_F(EngineTest, TheBudgetDoesNothingWhenTheReasoningEndsByItself) {
  GenerationRequest r = request({100}, 8);
  r.budget = ThinkingBudget{.tokens = 4, .end = 103, .closing = {1, 2}};
  const Outcome outcome = run(engine(), r);
  EXPECT_EQ(outcome.tokens, counting(101, 8));
  EXPECT_TRUE(outcome.forced.empty());
}

TEST_F(EngineTest, ABudgetOfNothingClosesTheReasoningAtOnce) {
  GenerationRequest r = request({100}, 4);
  r.budget = ThinkingBudget{.tokens = 0, .end = 50, .closing = {50}};
  EXPECT_EQ(run(engine(), r).tokens, counting(50, 4));
}

TEST_F(EngineTest, AFaultOfTheDeviceFailsWhatRunsAndNotWhatFollows) {
  record_->fail_at_step = 3;
  Engine& e = engine(2);
  auto first = e.start(request({1}, 100));
  auto second = e.start(request({500}, 100));
  const Outcome outcome = read_all(*first);
  EXPECT_EQ(outcome.finished.end, GenerationEnd::failed);
  EXPECT_EQ(outcome.finished.error, "the device is lost");
  read_all(*second);
  EXPECT_EQ(run(e, request({5}, 2)).tokens, (std::vector<Token>{6, 7}));
  EXPECT_EQ(record_->abandoned, 1);
}

TEST_F(EngineTest, AnOpeningFollowsItsMarker) {
  Engine& e = engine();
  GenerationRequest r = request({100}, 9);
  r.opening = AnswerOpening{.after = 103, .closing = {50, 103}, .tokens = {1, 2}};
  const Outcome outcome = run(e, r);
  EXPECT_EQ(outcome.tokens, (std::vector<Token>{101, 102, 103, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(outcome.forced, (std::vector<Token>{1, 2}));
  EXPECT_EQ(outcome.finished.end, GenerationEnd::length);
  r.max_tokens = 4;
  EXPECT_EQ(run(e, r).tokens, (std::vector<Token>{101, 102, 103, 1})) << "as far as the limit goes";
}

TEST_F(EngineTest, AnOpeningFollowsATurnThatEndsWithoutItsMarker) {
  Engine& e = engine();
  GenerationRequest r = request({100}, 20, {102, 5});
  r.opening = AnswerOpening{.after = 200, .closing = {50, 200}, .tokens = {1, 2}};
  const Outcome outcome = run(e, r);
  EXPECT_EQ(outcome.tokens, (std::vector<Token>{101, 50, 200, 1, 2, 3, 4}));
  EXPECT_EQ(outcome.finished.end, GenerationEnd::stop);
  EXPECT_EQ(outcome.finished.end_token, 5);
}

TEST_F(EngineTest, AnOpeningFollowsABudgetThatIsUsedUp) {
  Engine& e = engine();
  GenerationRequest r = request({100}, 8);
  r.budget = ThinkingBudget{.tokens = 2, .end = 200, .closing = {50, 200}};
  r.opening = AnswerOpening{.after = 200, .closing = {50, 200}, .tokens = {1, 2}};
  EXPECT_EQ(run(e, r).tokens, (std::vector<Token>{101, 102, 50, 200, 1, 2, 3, 4}));
}

TEST_F(EngineTest, ManyReadersAtOnce) {
  Engine& e = engine(3);
  std::vector<std::thread> readers;
  std::atomic<int> right{0};
  for (int reader = 0; reader < 8; ++reader) {
    readers.emplace_back([&, reader] {
      for (int round = 0; round < 20; ++round) {
        auto generation = e.start(request({static_cast<Token>(reader * 100)}, 10));
        if (round % 5 == 4) {
          generation->next();
          continue;  // walks away
        }
        right += read_all(*generation).tokens == counting(reader * 100 + 1, 10) ? 1 : 0;
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(right, 8 * 16);
}

}  // namespace
}  // namespace calla
