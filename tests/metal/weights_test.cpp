#include "metal/weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "metal/recorder.h"
#include "metal/stretches.h"
#include "support/demo.h"

namespace calla::metal {
namespace {

bool same(const View& view, std::span<const std::byte> bytes) {
  return std::ranges::equal(view.buffer->bytes().subspan(view.offset, bytes.size()), bytes);
}

bool same(const MatrixView& view, const AffineMatrix& matrix) {
  return view.rows == matrix.rows && same(view.words, matrix.words) && same(view.scales, matrix.scales) &&
         same(view.biases, matrix.biases);
}

bool same(const View& view, const std::vector<float>& values) {
  return same(view, std::as_bytes(std::span(values)));
}

void expect_same(const DeviceWeights& placed, const Weights& weights) {
  EXPECT_TRUE(same(placed.embedding, weights.embedding));
  EXPECT_TRUE(same(placed.head, weights.head));
  EXPECT_TRUE(same(placed.norm, weights.norm));
  ASSERT_EQ(placed.layers.size(), weights.layers.size());
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    SCOPED_TRACE(i);
    const LayerWeights& from = weights.layers[i];
    const LayerViews& layer = placed.layers[i];
    EXPECT_TRUE(same(layer.input_norm, from.input_norm));
    EXPECT_TRUE(same(layer.post_attention_norm, from.post_attention_norm));
    EXPECT_TRUE(same(layer.router, from.moe.router));
    EXPECT_TRUE(same(layer.shared_gate, from.moe.shared_gate));
    EXPECT_TRUE(same(layer.gate, from.moe.gate.all));
    EXPECT_TRUE(same(layer.up, from.moe.up.all));
    EXPECT_TRUE(same(layer.down, from.moe.down.all));
    EXPECT_TRUE(same(layer.shared_expert_gate, from.moe.shared.gate));
    EXPECT_TRUE(same(layer.shared_expert_up, from.moe.shared.up));
    EXPECT_TRUE(same(layer.shared_expert_down, from.moe.shared.down));
    if (const auto* delta = std::get_if<DeltaNetWeights>(&from.mixer)) {
      EXPECT_TRUE(same(layer.project[0], delta->qkv));
      EXPECT_TRUE(same(layer.project[1], delta->z));
      EXPECT_TRUE(same(layer.project[2], delta->b));
      EXPECT_TRUE(same(layer.project[3], delta->a));
      EXPECT_TRUE(same(layer.out, delta->out));
      EXPECT_TRUE(same(layer.convolution, delta->convolution));
      EXPECT_TRUE(same(layer.a_log, delta->a_log));
      EXPECT_TRUE(same(layer.dt_bias, delta->dt_bias));
      EXPECT_TRUE(same(layer.norm, delta->norm));
    } else {
      const auto& attention = std::get<AttentionWeights>(from.mixer);
      EXPECT_TRUE(same(layer.project[0], attention.q));
      EXPECT_TRUE(same(layer.project[1], attention.k));
      EXPECT_TRUE(same(layer.project[2], attention.v));
      EXPECT_EQ(layer.project[3].rows, 0);
      EXPECT_TRUE(same(layer.out, attention.o));
      EXPECT_TRUE(same(layer.q_norm, attention.q_norm));
      EXPECT_TRUE(same(layer.k_norm, attention.k_norm));
    }
  }
}

void expect_alignment(const DeviceWeights& placed) {
  for (const LayerViews& layer : placed.layers) {
    for (const MatrixView* m :
         {&layer.gate, &layer.up, &layer.down, &layer.router, &layer.out, &layer.project[0]}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(m->words.buffer->bytes().data() + m->words.offset) % 16, 0U);
    }
  }
}

/// The demonstration model with all its bytes moved to a residue of 16.
class MovedWeights {
 public:
  explicit MovedWeights(std::size_t residue) : weights_(test::demo_weights()) {
    const std::vector<Stretch> stretches = find_stretches(weights_, std::size_t{1} << 40);
    EXPECT_EQ(stretches.size(), 1U);
    const auto bytes = stretches.front().bytes;
    memory_.resize(bytes.size() + 32);
    const auto start = reinterpret_cast<std::uintptr_t>(memory_.data());
    const std::uintptr_t first_words = reinterpret_cast<std::uintptr_t>(weights_.embedding.words.data()) -
                                       reinterpret_cast<std::uintptr_t>(bytes.data());
    const std::size_t at = (residue + 32 - (start + first_words) % 16) % 16;
    std::memcpy(memory_.data() + at, bytes.data(), bytes.size());
    move_ = [this, at, from = bytes.data()](std::span<const std::byte>& span) {
      span = {memory_.data() + at + (span.data() - from), span.size()};
    };
    move(weights_.embedding);
    move(weights_.head);
    for (LayerWeights& layer : weights_.layers) {
      std::visit([this](auto& mixer) { move(mixer); }, layer.mixer);
      MoeWeights& moe = layer.moe;
      for (auto* m : {&moe.router, &moe.gate.all, &moe.up.all, &moe.down.all, &moe.shared.gate,
                      &moe.shared.up, &moe.shared.down, &moe.shared_gate})
        move(*m);
    }
    weights_.pages = nullptr;
  }
  const Weights& weights() const { return weights_; }

 private:
  void move(AffineMatrix& m) {
    move_(m.words);
    move_(m.scales);
    move_(m.biases);
  }
  void move(DeltaNetWeights& w) {
    for (auto* m : {&w.qkv, &w.z, &w.a, &w.b, &w.out}) move(*m);
  }
  void move(AttentionWeights& w) {
    for (auto* m : {&w.q, &w.k, &w.v, &w.o}) move(*m);
  }

  Weights weights_;
  std::vector<std::byte> memory_;
  std::function<void(std::span<const std::byte>&)> move_;
};

TEST(PlaceWeights, AlignedFilesAreUsedWhereTheyAre) {
  RecordingDevice device;
  const MovedWeights moved(0);
  const DeviceWeights placed = place_weights(device, moved.weights(), {});
  expect_same(placed, moved.weights());
  expect_alignment(placed);
  EXPECT_GT(placed.mapped, std::uint64_t{10} << 20);
  EXPECT_LT(placed.copied, placed.mapped / 10) << "the small vectors alone";
}

TEST(PlaceWeights, OthersAreCopiedToWhereKernelsCanReadThem) {
  for (const std::size_t residue : {1U, 2U, 8U, 15U}) {
    SCOPED_TRACE(residue);
    RecordingDevice device;
    const MovedWeights moved(residue);
    std::uint64_t last = 0;
    std::uint64_t of = 0;
    const DeviceWeights placed =
        place_weights(device, moved.weights(), [&](std::uint64_t done, std::uint64_t total) {
          EXPECT_LE(done, total);
          last = done;
          of = total;
        });
    expect_same(placed, moved.weights());
    expect_alignment(placed);
    EXPECT_EQ(placed.mapped, 0U);
    EXPECT_EQ(last, of);
    EXPECT_GT(of, 0U);
  }
}

TEST(PlaceWeights, TheFilesOfTheDemonstrationModel) {
  RecordingDevice device;
  expect_same(place_weights(device, test::demo_weights(), {}), test::demo_weights());
}

/// A mapping that ends, and another that begins, in the midst of a model's bytes.
class TwoFiles final : public WeightPages {
 public:
  explicit TwoFiles(const std::byte* border) : border_(border) {}
  std::span<const std::byte> mapping(std::span<const std::byte> bytes) const override {
    return bytes.data() < border_ ? std::span(border_ - 1, 1) : std::span(border_, 1);
  }
  void read_ahead(std::span<const std::byte>) const override {}
  void load(std::span<const std::byte>) const override {}
  void drop(std::span<const std::byte>) const override {}

 private:
  const std::byte* border_;
};

TEST(FindStretches, NoneIsOfTwoFiles) {
  Weights weights = test::demo_weights();
  const std::size_t most = std::size_t{1} << 40;
  const std::vector<Stretch> whole = find_stretches(weights, most);
  ASSERT_EQ(whole.size(), 1U);
  const auto& parts = whole.front().parts;
  const std::byte* const border = parts[parts.size() / 2].data();
  weights.pages = std::make_shared<TwoFiles>(border);
  const std::vector<Stretch> halves = find_stretches(weights, most);
  ASSERT_EQ(halves.size(), 2U);
  EXPECT_LE(halves[0].bytes.data() + halves[0].bytes.size(), border);
  EXPECT_EQ(halves[1].bytes.data(), border);
  EXPECT_EQ(halves[0].parts.size() + halves[1].parts.size(), parts.size());
}

TEST(FindStretches, NoneIsLongerThanABufferMayBe) {
  constexpr std::size_t most = std::size_t{4} << 20;
  std::size_t parts = 0;
  for (const Stretch& stretch : find_stretches(test::demo_weights(), most)) {
    EXPECT_TRUE(stretch.bytes.size() <= most || stretch.parts.size() == 1);
    for (const auto part : stretch.parts) {
      EXPECT_GE(part.data(), stretch.bytes.data());
      EXPECT_LE(part.data() + part.size(), stretch.bytes.data() + stretch.bytes.size());
    }
    parts += stretch.parts.size();
  }
  EXPECT_EQ(parts, 3U * (2 + 6 * 13 + 2 * 12));
}

}  // namespace
}  // namespace calla::metal
