#include "model/cost.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

// Numbers worked out by hand from the shapes of the tensors.

TEST(Cost, ATokenOfTheRealModelReads1667Megabytes) {
  // 4-bit: 30 DeltaNet layers of 33,685,504 weights, 10 attention layers of 27,262,976, 40 times 9 experts of
  // 3,145,728, the head's 508,559,360; at 0.5625 bytes. 8-bit: 40 times 257 rows of 2048, at 1.0625 bytes.
  const double matrices =
      (30 * 33'685'504.0 + 10 * 27'262'976.0 + 40 * 9 * 3'145'728.0 + 508'559'360.0) * 0.5625 +
      40 * 257 * 2048 * 1.0625;
  EXPECT_NEAR(matrices / 1e9, 1.667, 0.0005);
  // Norms, taps and decays, at two bytes.
  const double vectors = 2.0 * (40 * 2 * 2048 + 2048 + 10 * 512 + 30 * (4 * 8192 + 64 + 128));
  const DecodeBytes bytes = decode_bytes(qwen36_35b, 1, 1000);
  EXPECT_DOUBLE_EQ(bytes.weights, matrices + vectors);
  EXPECT_DOUBLE_EQ(bytes.embedding, 1152) << "1024 bytes of nibbles, 32 groups of 4 bytes";
}

TEST(Cost, StatesOfTheRealModelAre63MegabytesEachWay) {
  const double recurrent = 30.0 * 32 * 128 * 128 * 4;  // 62.9 MB
  const double window = 30.0 * 3 * 8192 * 4;
  EXPECT_DOUBLE_EQ(decode_bytes(qwen36_35b, 1, 0).states, 2 * (recurrent + window));
  EXPECT_DOUBLE_EQ(decode_bytes(qwen36_35b, 3, 0).states, 3 * decode_bytes(qwen36_35b, 1, 0).states);
}

TEST(Cost, AContextTokenOfTheRealModelIs20480Bytes) {
  EXPECT_DOUBLE_EQ(decode_bytes(qwen36_35b, 1, 0).kv_cache, 0);
  EXPECT_DOUBLE_EQ(decode_bytes(qwen36_35b, 1, 1000).kv_cache, 20'480'000);
  EXPECT_DOUBLE_EQ(decode_bytes(qwen36_35b, 2, 1000).kv_cache, 40'960'000);
}

TEST(Cost, ABatchReadsTheExpertsItHitsOnce) {
  EXPECT_DOUBLE_EQ(expected_experts(qwen36_35b, 1), 8);
  EXPECT_DOUBLE_EQ(expected_experts(qwen36_35b, 2), 15.75);  // 8 + 8 * 248 / 256
  EXPECT_NEAR(expected_experts(qwen36_35b, 1000), 256, 1e-6);
  const double more = decode_bytes(qwen36_35b, 2, 0).weights - decode_bytes(qwen36_35b, 1, 0).weights;
  EXPECT_NEAR(more, 40 * 7.75 * 3'145'728 * 0.5625, 1);
}

TEST(Cost, ACutModelHasTheLayersItHas) {
  Shape cut = qwen36_35b;
  cut.layers = 3;
  const DecodeBytes bytes = decode_bytes(cut, 1, 1000);
  EXPECT_DOUBLE_EQ(bytes.kv_cache, 0) << "no attention among the first three";
  EXPECT_DOUBLE_EQ(bytes.states, decode_bytes(qwen36_35b, 1, 0).states / 10);
}

TEST(Cost, PrefillCountsProductsAttentionAndRecurrence) {
  // One token: every weight of the active path once, the head, itself as the context.
  const double weights = 30 * 33'685'504.0 + 10 * 27'262'976.0 + 40 * 9 * 3'145'728.0 + 40 * 257 * 2048.0;
  const double delta = 30 * (4 * 8192 + 3.5 * 32 * 128 * 128);
  const double attended = 10 * 2.0 * 4096;
  const double one = 2 * (weights + delta + attended + 508'559'360.0);
  EXPECT_DOUBLE_EQ(prefill_operations(qwen36_35b, 1), one);
  // Two tokens see three positions between them, and only the second needs logits.
  EXPECT_DOUBLE_EQ(prefill_operations(qwen36_35b, 2), one + 2 * (weights + delta + 2 * attended));
}

}  // namespace
}  // namespace calla
