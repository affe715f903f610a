#include "metal/keep_alive.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "metal/architecture.h"

namespace calla::metal {
namespace {

using std::chrono::milliseconds;

struct Counts {
  std::atomic<int> begun = 0;
  std::atomic<int> beats = 0;
  std::atomic<int> ended = 0;

  KeepAlive::Actions actions() {
    return {.begin = [this] { ++begun; }, .beat = [this] { ++beats; }, .end = [this] { ++ended; }};
  }
};

/// Waits for what must come to pass, as long as a slow machine may take.
template <class Condition>
bool comes(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return condition();
}

TEST(KeepAlive, DoesNothingUntilItIsTouched) {
  Counts counts;
  { const KeepAlive keeper(counts.actions(), milliseconds(1), milliseconds(10)); }
  EXPECT_EQ(counts.begun, 0);
  EXPECT_EQ(counts.ended, 0);
}

TEST(KeepAlive, BeatsAndEndsByItself) {
  Counts counts;
  KeepAlive keeper(counts.actions(), milliseconds(1), milliseconds(50));
  keeper.touch();
  EXPECT_TRUE(comes([&] { return counts.beats >= 2; }));
  EXPECT_TRUE(comes([&] { return counts.ended == 1; }));
  EXPECT_EQ(counts.begun, 1);
  keeper.touch();
  EXPECT_TRUE(comes([&] { return counts.begun == 2; }));
}

TEST(KeepAlive, EndsWhatItBeganWhenItGoes) {
  Counts counts;
  {
    KeepAlive keeper(counts.actions(), std::chrono::hours(1), std::chrono::hours(1));
    keeper.touch();
    EXPECT_TRUE(comes([&] { return counts.beats == 1; }));
  }
  EXPECT_EQ(counts.begun, 1);
  EXPECT_EQ(counts.beats, 1);
  EXPECT_EQ(counts.ended, 1);
}

TEST(Architecture, TensorUnitsComeWithTheM5) {
  EXPECT_FALSE(architecture_has_tensor_units("applegpu_g13g"));  // M1
  EXPECT_FALSE(architecture_has_tensor_units("applegpu_g16s"));  // M4 Max
  EXPECT_TRUE(architecture_has_tensor_units("applegpu_g17g"));   // M5
  EXPECT_TRUE(architecture_has_tensor_units("applegpu_g17s"));
  EXPECT_TRUE(architecture_has_tensor_units("applegpu_g18d"));
  EXPECT_FALSE(architecture_has_tensor_units("applegpu_g17p"));  // a phone's of the generation before
  EXPECT_TRUE(architecture_has_tensor_units("applegpu_g18p"));
  EXPECT_FALSE(architecture_has_tensor_units("applegpu_g"));
  EXPECT_FALSE(architecture_has_tensor_units("Apple Paravirtual device"));
  EXPECT_FALSE(architecture_has_tensor_units(""));
}

}  // namespace
}  // namespace calla::metal
