// The mixers of decode for some tokens of one sequence at once: each has the bits that it has in a step of
// its own, and so has what the sequence carries on.
#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/arrays.h"
#include "cuda/decode.h"
#include "cuda/launch.h"
#include "cuda/mixer_support.h"
#include "cuda/model_types.h"

namespace calla::cuda {
namespace {

template <class Model>
class DecodeSequence : public testing::Test {};
TYPED_TEST_SUITE(DecodeSequence, Models, ModelNames);

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

cudaStream_t stream() {
  static const Stream only = make_stream();
  return only.get();
}

/// What a step of a sequence's rows is told, the sequence being in slot 1.
struct Rows {
  static constexpr int slot = 1;
  DeviceArray<int> slots;
  DeviceArray<int> active;
  DeviceArray<int> behind;
  DeviceArray<int> positions;

  /// `count` tokens from `position` on, of a graph for `rows`.
  Rows(int position, int count, int rows) {
    std::vector<int> of_rows(size(rows), -1);
    std::vector<int> later(size(rows));
    for (int row = 0; row < count; ++row) {
      of_rows[size(row)] = slot;
      later[size(row)] = count - 1 - row;
    }
    slots = on_device(of_rows);
    active = on_device(std::vector<int>(size(rows), 1));
    behind = on_device(later);
    positions = on_device(std::vector<int>{-1, position + count});
  }
  DecodeState state(bool sequence) const {
    DecodeState state;
    state.block_memory = most_shared_memory();
    state.sequence = sequence;
    state.slots = slots.data();
    state.active = active.data();
    state.behind = behind.data();
    state.positions = positions.data();
    return state;
  }
};

/// Calls step(state, rows, first row): once for all tokens, or once for each.
template <class Step>
void run(bool together, int position, int count, int rows, Step step) {
  if (together) {
    const Rows of_all(position, count, rows);
    step(of_all.state(true), rows, 0);
    check(cudaDeviceSynchronize(), "running");
    return;
  }
  for (int row = 0; row < count; ++row) {
    const Rows of_one(position + row, 1, 1);
    step(of_one.state(false), 1, row);
    check(cudaDeviceSynchronize(), "running");
  }
}

struct Case {
  int count;
  int rows;  // of the graph
};
constexpr std::array<Case, 8> cases{{{2, 2}, {3, 4}, {4, 4}, {5, 8}, {8, 8}, {9, 16}, {15, 16}, {16, 16}}};

struct DeltaResult {
  std::vector<float> mixed;
  std::vector<float> squares;
  std::vector<float> recurrent;
  std::vector<float> windows;
};

template <class Model>
struct DeltaLayer {
  static constexpr Shape S = Model::shape;
  static constexpr int columns = S.convolution_channels() + S.delta_value_dim() + 2 * S.delta_value_heads;
  static constexpr int delta_layer = 1;

  DeviceArray<float> convolution = on_device(normal_values(size(4 * S.convolution_channels()), 0, 0.5F, 1));
  DeviceArray<float> a_log = on_device(normal_values(size(S.delta_value_heads), 0, 1, 2));
  DeviceArray<float> dt_bias = on_device(normal_values(size(S.delta_value_heads), -2, 1, 3));
  DeviceArray<float> norm = on_device(normal_values(size(Shape::delta_head_dim), 1, 0.2F, 4));
  DeviceArray<float> projected = on_device(normal_values(size(most_rows * columns), 0, 1, 5));
  std::vector<float> recurrent = normal_values(2 * recurrent_elements<S>(), 0, 0.3F, 6);
  std::vector<float> windows = normal_values(2 * window_elements<S>(), 0, 1, 7);

  DeltaResult operator()(bool together, int position, int count, int rows) const {
    const DeviceArray<float> state_there = on_device(recurrent);
    const DeviceArray<float> windows_there = on_device(windows);
    const DeviceArray<float*> states = on_device(std::vector<float*>{nullptr, state_there.data()});
    const DeviceArray<float*> all_windows = on_device(std::vector<float*>{nullptr, windows_there.data()});
    const DeviceArray<float> mixed = poisoned<float>(size(count * S.delta_value_dim()));
    const DeviceArray<float> squares = poisoned<float>(size(count * S.delta_value_heads * delta_squares));
    DeviceLayer layer;
    layer.convolution = convolution.data();
    layer.a_log = a_log.data();
    layer.dt_bias = dt_bias.data();
    layer.norm = norm.data();
    run(together, position, count, rows, [&](DecodeState step, int step_rows, int first) {
      step.projected = projected.data() + size(first * columns);
      step.recurrent = states.data();
      step.windows = all_windows.data();
      step.mixed = mixed.data() + size(first * S.delta_value_dim());
      step.squares = squares.data() + size(first * S.delta_value_heads * delta_squares);
      decode_delta<Model>(stream(), layer, delta_layer, step, step_rows);
    });
    return {on_host(mixed), on_host(squares), on_host(state_there), on_host(windows_there)};
  }
};

TYPED_TEST(DecodeSequence, DeltaNetGivesTheBitsOfOneByOne) {
  const DeltaLayer<TypeParam> layer;
  for (const int position : {0, 3, 70}) {
    for (const auto& [count, rows] : cases) {
      const DeltaResult together = layer(true, position, count, rows);
      const DeltaResult one_by_one = layer(false, position, count, rows);
      for (const float value : one_by_one.mixed) ASSERT_TRUE(std::isfinite(value));
      EXPECT_TRUE(same_bits(together.mixed, one_by_one.mixed)) << count << " from " << position;
      EXPECT_TRUE(same_bits(together.squares, one_by_one.squares)) << count << " from " << position;
      EXPECT_TRUE(same_bits(together.recurrent, one_by_one.recurrent)) << count << " from " << position;
      EXPECT_TRUE(same_bits(together.windows, one_by_one.windows)) << count << " from " << position;
    }
  }
}

struct AttentionResult {
  std::vector<float> mixed;
  std::vector<std::uint16_t> newest;  // the pages that have the tokens
};

template <class Model>
struct AttentionLayer {
  static constexpr Shape S = Model::shape;
  static constexpr int columns = 2 * S.attention_dim() + 2 * S.kv_dim();
  static constexpr std::size_t partials_of_row =
      std::size_t{S.attention_heads} * attention_splits * attention_partial_floats;
  static constexpr int attention_layer = 1;

  DeviceArray<float> query_norm = on_device(normal_values(size(Shape::attention_head_dim), 1, 0.2F, 1));
  DeviceArray<float> key_norm = on_device(normal_values(size(Shape::attention_head_dim), 1, 0.2F, 2));
  DeviceArray<float> projected = on_device(normal_values(size(most_rows * columns), 0, 1, 3));
  DeviceArray<float> turns = on_device(normal_values(size(most_rows * Shape::rotary_dim), 0, 0.7F, 4));
  std::vector<std::uint16_t> page = random_page();

  static std::vector<std::uint16_t> random_page() {
    const std::vector<float> values = normal_values(page_elements<S>(), 0, 1, 5);
    std::vector<std::uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), [](float value) {
      const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
      std::uint16_t bits = 0;
      std::memcpy(&bits, &rounded, sizeof bits);
      return bits;
    });
    return halves;
  }

  AttentionResult operator()(bool together, int position, int count, int rows) const {
    std::vector<DeviceArray<std::uint16_t>> pages;
    std::vector<__nv_bfloat16*> pointers;
    for (int first = 0; first < position + count; first += page_positions) {
      pages.push_back(on_device(page));
      pointers.push_back(reinterpret_cast<__nv_bfloat16*>(pages.back().data()));
    }
    const DeviceArray<__nv_bfloat16*> of_sequence = on_device(pointers);
    const DeviceArray<PageTable> tables = on_device(std::vector<PageTable>{nullptr, of_sequence.data()});
    const DeviceArray<float> mixed = poisoned<float>(size(count * S.attention_dim()));
    const DeviceArray<float> partials = poisoned<float>(size(rows) * partials_of_row);
    DeviceLayer layer;
    layer.q_norm = query_norm.data();
    layer.k_norm = key_norm.data();
    run(together, position, count, rows, [&](DecodeState step, int step_rows, int first) {
      step.projected = projected.data() + size(first * columns);
      step.turns = turns.data() + size(first * Shape::rotary_dim);
      step.pages = tables.data();
      step.partials = partials.data();
      step.mixed = mixed.data() + size(first * S.attention_dim());
      decode_attention<Model>(stream(), layer, attention_layer, step, step_rows);
    });
    return {on_host(mixed), on_host(pages.back())};
  }
};

TYPED_TEST(DecodeSequence, AttentionGivesTheBitsOfOneByOne) {
  const AttentionLayer<TypeParam> layer;
  // The tokens within a tile of 64 keys, over its end, over a page's end, and with several tiles a split.
  for (const int position : {0, 1, 57, 64, 250, 1000, 4090, 8300}) {
    for (const auto& [count, rows] : cases) {
      const AttentionResult together = layer(true, position, count, rows);
      const AttentionResult one_by_one = layer(false, position, count, rows);
      for (const float value : one_by_one.mixed) ASSERT_TRUE(std::isfinite(value));
      EXPECT_TRUE(same_bits(together.mixed, one_by_one.mixed)) << count << " from " << position;
      EXPECT_TRUE(same_bits(together.newest, one_by_one.newest)) << count << " from " << position;
    }
  }
}

}  // namespace
}  // namespace calla::cuda
