#include "model/shape.h"

#include <gtest/gtest.h>

namespace calla {
namespace {

TEST(Shape, DerivesTheWidthsOfTheRealModel) {
  constexpr Shape s = qwen36_35b;
  EXPECT_EQ(s.attention_layers(), 10);
  EXPECT_EQ(s.delta_layers(), 30);
  EXPECT_EQ(s.attention_dim(), 4096);
  EXPECT_EQ(s.kv_dim(), 512);
  EXPECT_EQ(s.delta_key_dim(), 2048);
  EXPECT_EQ(s.delta_value_dim(), 4096);
  EXPECT_EQ(s.convolution_channels(), 8192);
}

TEST(Shape, DerivesTheWidthsOfTheDemo) {
  constexpr Shape s = demo;
  EXPECT_EQ(s.attention_layers(), 2);
  EXPECT_EQ(s.delta_layers(), 6);
  EXPECT_EQ(s.attention_dim(), 2048);
  EXPECT_EQ(s.kv_dim(), 256);
  EXPECT_EQ(s.delta_key_dim(), 512);
  EXPECT_EQ(s.delta_value_dim(), 1024);
  EXPECT_EQ(s.convolution_channels(), 2048);
}

TEST(Shape, EveryFourthLayerIsAttention) {
  int count = 0;
  for (int layer = 0; layer < qwen36_35b.layers; ++layer) count += Shape::is_attention(layer) ? 1 : 0;
  EXPECT_EQ(count, qwen36_35b.attention_layers());
  EXPECT_FALSE(Shape::is_attention(0));
  EXPECT_TRUE(Shape::is_attention(3));
  EXPECT_TRUE(Shape::is_attention(39));
}

TEST(Shape, EveryRowOfAMatrixIsWholeGroups) {
  for (const Shape& s : {qwen36_35b, demo}) {
    for (const int columns :
         {s.hidden, s.attention_dim(), s.delta_value_dim(), s.expert_hidden, s.shared_expert_hidden}) {
      EXPECT_EQ(columns % Shape::quantization_group, 0) << name(s) << " " << columns;
    }
    EXPECT_EQ(s.attention_heads % s.kv_heads, 0);
    EXPECT_EQ(s.delta_value_heads % s.delta_key_heads, 0);
  }
}

TEST(Shape, HasTheNamePeopleKnow) {
  EXPECT_EQ(name(qwen36_35b), "Qwen3.6-35B-A3B");
  EXPECT_EQ(name(demo), "Calla demo");
  Shape other = demo;
  other.hidden = 1024;
  EXPECT_EQ(name(other), "unknown");
}

TEST(Shape, IsTheSameModelWithFewerLayers) {
  Shape cut = qwen36_35b;
  cut.layers = 3;
  EXPECT_TRUE(same_model(cut, qwen36_35b));
  EXPECT_FALSE(same_model(cut, demo));
  EXPECT_FALSE(cut == qwen36_35b);
  EXPECT_EQ(name(cut), "Qwen3.6-35B-A3B");
  EXPECT_EQ(cut.attention_layers(), 0);
  EXPECT_EQ(cut.delta_layers(), 3);
}

}  // namespace
}  // namespace calla
