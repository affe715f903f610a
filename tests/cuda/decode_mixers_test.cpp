// The mixers of decode against plain loops in double; and for some tokens of one sequence at once: each has
// the bits that it has in a step of its own, and so has what the sequence carries on.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/arrays.h"
#include "cuda/decode.h"
#include "cuda/decode_support.h"
#include "cuda/mixer_references.h"
#include "cuda/mixer_support.h"
#include "cuda/model_types.h"

namespace calla::cuda {
namespace {

template <class Model>
class DecodeMixers : public testing::Test {};
TYPED_TEST_SUITE(DecodeMixers, Models, ModelNames);

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

  std::vector<float> convolution = normal_values(size(4 * S.convolution_channels()), 0, 0.5F, 1);
  std::vector<float> a_log = normal_values(size(S.delta_value_heads), 0, 1, 2);
  std::vector<float> dt_bias = normal_values(size(S.delta_value_heads), -2, 1, 3);
  std::vector<float> norm = normal_values(size(Shape::delta_head_dim), 1, 0.2F, 4);
  std::vector<float> projected = normal_values(size(most_rows * columns), 0, 1, 5);
  std::vector<float> recurrent = normal_values(2 * recurrent_elements<S>(), 0, 0.3F, 6);
  std::vector<float> windows = normal_values(2 * window_elements<S>(), 0, 1, 7);

  DeltaResult operator()(bool together, int position, int count, int rows) const {
    const DeviceArray<float> convolution_there = on_device(convolution);
    const DeviceArray<float> a_log_there = on_device(a_log);
    const DeviceArray<float> dt_bias_there = on_device(dt_bias);
    const DeviceArray<float> norm_there = on_device(norm);
    const DeviceArray<float> projected_there = on_device(projected);
    const DeviceArray<float> state_there = on_device(recurrent);
    const DeviceArray<float> windows_there = on_device(windows);
    const DeviceArray<float*> states = on_device(std::vector<float*>{nullptr, state_there.data()});
    const DeviceArray<float*> all_windows = on_device(std::vector<float*>{nullptr, windows_there.data()});
    const DeviceArray<float> mixed = poisoned<float>(size(count * S.delta_value_dim()));
    const DeviceArray<float> squares = poisoned<float>(size(count * S.delta_value_heads * delta_squares));
    DeviceLayer layer;
    layer.convolution = convolution_there.data();
    layer.a_log = a_log_there.data();
    layer.dt_bias = dt_bias_there.data();
    layer.norm = norm_there.data();
    run(together, position, count, rows, [&](DecodeState step, int step_rows, int first) {
      step.projected = projected_there.data() + size(first * columns);
      step.recurrent = states.data();
      step.windows = all_windows.data();
      step.mixed = mixed.data() + size(first * S.delta_value_dim());
      step.squares = squares.data() + size(first * S.delta_value_heads * delta_squares);
      decode_delta<Model>(stream(), layer, delta_layer, step, step_rows);
    });
    return {on_host(mixed), on_host(squares), on_host(state_there), on_host(windows_there)};
  }
};

TYPED_TEST(DecodeMixers, DeltaNetGivesTheBitsOfOneByOne) {
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

/// silu of the convolution's sum; what the window has before the sequence counts, too (it is cleared).
template <class Model>
double convolved(const DeltaLayer<Model>& layer, int position, int token, int channel) {
  constexpr Shape S = Model::shape;
  constexpr int taps = Shape::convolution_taps;
  const float* const window = layer.windows.data() + window_elements<S>() * DeltaLayer<Model>::delta_layer;
  double sum = 0;
  for (int tap = 0; tap < taps; ++tap) {
    const int t = token - (taps - 1) + tap;
    const float x = t >= 0 ? layer.projected[size(t * DeltaLayer<Model>::columns + channel)]
                           : window[(position + t + taps) % taps * S.convolution_channels() + channel];
    sum += double{x} * layer.convolution[size(channel * taps + tap)];
  }
  return silu_of(sum);
}

/// All of the kernel is float32.
template <class Model>
void expect_recurrence(const DeltaLayer<Model>& layer, int position, int count, const DeltaResult& got) {
  constexpr Shape S = Model::shape;
  constexpr int dim = Shape::delta_head_dim;
  constexpr int heads = S.delta_value_heads;
  const std::size_t of_layer = recurrent_elements<S>() * DeltaLayer<Model>::delta_layer;
  std::vector<RelativeError> mixed(heads);
  std::vector<RelativeError> squares(heads);
  std::vector<RelativeError> states(heads);
  in_parallel(heads, [&](int head) {
    const std::size_t state_at = of_layer + size(head) * dim * dim;
    const int key_head = head * S.delta_key_heads / heads;
    DeltaHead reference(std::span(layer.recurrent).subspan(state_at, dim * dim));
    for (int t = 0; t < count; ++t) {
      const auto from = [&](int channel) {
        DeltaRow row{};
        for (int i = 0; i < dim; ++i) row[size(i)] = convolved(layer, position, t, channel + i);
        return row;
      };
      const float* const projected = layer.projected.data() + t * DeltaLayer<Model>::columns;
      const float* const z = projected + S.convolution_channels() + head * dim;
      const float* const gates = projected + S.convolution_channels() + S.delta_value_dim();
      const DeltaRow o =
          reference.step(from(key_head * dim), from(S.delta_key_dim() + key_head * dim),
                         from(2 * S.delta_key_dim() + head * dim), gates[head], gates[heads + head],
                         layer.a_log[size(head)], layer.dt_bias[size(head)]);
      double sum = 0;
      for (int i = 0; i < dim; ++i) {
        mixed[size(head)].add(got.mixed[size(t * S.delta_value_dim() + head * dim + i)],
                              o[size(i)] * layer.norm[size(i)] * silu_of(z[i]));
        sum += o[size(i)] * o[size(i)];
      }
      const float* const parts = got.squares.data() + (t * heads + head) * delta_squares;
      squares[size(head)].add(double{parts[0]} + parts[1] + parts[2] + parts[3], sum);
    }
    for (int i = 0; i < dim * dim; ++i)
      states[size(head)].add(got.recurrent[state_at + size(i)], reference.state()[size(i)]);
  });
  for (int head = 0; head < heads; ++head) {
    EXPECT_LT(mixed[size(head)].value(), 1e-5) << count << " from " << position << ", head " << head;
    EXPECT_LT(squares[size(head)].value(), 1e-5) << count << " from " << position << ", head " << head;
    EXPECT_LT(states[size(head)].value(), 1e-5) << count << " from " << position << ", head " << head;
  }
}

/// What no token of the call has to do with is as it was; the window has the last projections, exactly.
template <class Model>
void expect_windows(const DeltaLayer<Model>& layer, int position, int count, const DeltaResult& got) {
  constexpr Shape S = Model::shape;
  constexpr int taps = Shape::convolution_taps;
  constexpr int channels = S.convolution_channels();
  std::vector<float> expected = layer.windows;
  float* const of_layer = expected.data() + window_elements<S>() * DeltaLayer<Model>::delta_layer;
  for (int t = 0; t < count; ++t)
    std::copy_n(layer.projected.data() + t * DeltaLayer<Model>::columns, channels,
                of_layer + (position + t) % taps * channels);
  EXPECT_TRUE(same_bits(got.windows, expected)) << count << " from " << position;
  const auto other = static_cast<std::ptrdiff_t>(recurrent_elements<S>());
  EXPECT_TRUE(std::equal(got.recurrent.begin(), got.recurrent.begin() + other, layer.recurrent.begin()))
      << "another layer's";
}

TYPED_TEST(DecodeMixers, DeltaNetAsInDouble) {
  const DeltaLayer<TypeParam> layer;
  for (const int position : {0, 1, 2, 3, 70, 131'072, 262'143}) {
    for (const auto& [count, rows] : {Case{1, 1}, Case{6, 8}, Case{16, 16}}) {
      const DeltaResult got = layer(count > 1, position, count, rows);
      expect_recurrence(layer, position, count, got);
      expect_windows(layer, position, count, got);
    }
  }
}

double as_double(std::uint16_t bf16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16U); }
std::uint16_t as_bf16(double value) {
  const __nv_bfloat16 rounded = __float2bfloat16_rn(static_cast<float>(value));
  return std::bit_cast<std::uint16_t>(rounded);
}

struct AttentionResult {
  std::vector<float> mixed;
  std::vector<std::uint16_t> newest;  // the pages that the tokens joined
};

/// A layer's weights, the projections of some tokens, and keys and values of the positions before them. Each
/// full page begins a little behind the one before in the same memory, so that no two pages of a long
/// sequence are alike, and it needs little of it.
template <class Model>
struct AttentionLayer {
  static constexpr Shape S = Model::shape;
  static constexpr int columns = 2 * S.attention_dim() + 2 * S.kv_dim();
  static constexpr std::size_t partials_of_row =
      std::size_t{S.attention_heads} * attention_splits * attention_partial_floats;
  static constexpr int attention_layer = 1;
  static constexpr std::size_t page_shift = 37 * 8;  // pages begin at multiples of 16 bytes
  static constexpr std::size_t most_pages = 262'144 / page_positions;

  std::vector<float> query_norm = normal_values(size(Shape::attention_head_dim), 1, 0.2F, 1);
  std::vector<float> key_norm = normal_values(size(Shape::attention_head_dim), 1, 0.2F, 2);
  std::vector<float> projected = normal_values(size(most_rows * columns), 0, 1, 3);
  std::vector<float> turns = normal_values(size(most_rows * Shape::rotary_dim), 0, 0.7F, 4);
  std::vector<std::uint16_t> content = random_content();
  DeviceArray<std::uint16_t> content_there = on_device(content);

  static std::vector<std::uint16_t> random_content() {
    const std::vector<float> values = normal_values(page_elements<S>() + most_pages * page_shift, 0, 1, 5);
    std::vector<std::uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), as_bf16);
    return halves;
  }

  /// change(state) has the last word on what the kernels are told.
  template <class Change = void (*)(DecodeState&)>
  AttentionResult operator()(
      bool together, int position, int count, int rows, Change change = [](DecodeState&) {}) const {
    const int full = position / page_positions;
    const int ends = (position + count - 1) / page_positions + 1;
    const std::vector<std::uint16_t> page(content.begin(),
                                          content.begin() + static_cast<std::ptrdiff_t>(page_elements<S>()));
    std::vector<std::uint16_t> copies;
    for (int i = full; i < ends; ++i) copies.insert(copies.end(), page.begin(), page.end());
    const DeviceArray<std::uint16_t> newest = on_device(copies);
    std::vector<__nv_bfloat16*> pointers;
    for (int i = 0; i < ends; ++i) {
      std::uint16_t* const at = i < full ? content_there.data() + size(i) * page_shift
                                         : newest.data() + size(i - full) * page_elements<S>();
      pointers.push_back(reinterpret_cast<__nv_bfloat16*>(at));
    }
    const DeviceArray<float> query_norm_there = on_device(query_norm);
    const DeviceArray<float> key_norm_there = on_device(key_norm);
    const DeviceArray<float> projected_there = on_device(projected);
    const DeviceArray<float> turns_there = on_device(turns);
    const DeviceArray<__nv_bfloat16*> of_sequence = on_device(pointers);
    const DeviceArray<PageTable> tables = on_device(std::vector<PageTable>{nullptr, of_sequence.data()});
    const DeviceArray<float> mixed = poisoned<float>(size(count * S.attention_dim()));
    const DeviceArray<float> partials = poisoned<float>(size(rows) * partials_of_row);
    DeviceLayer layer;
    layer.q_norm = query_norm_there.data();
    layer.k_norm = key_norm_there.data();
    run(together, position, count, rows, [&](DecodeState step, int step_rows, int first) {
      step.projected = projected_there.data() + size(first * columns);
      step.turns = turns_there.data() + size(first * Shape::rotary_dim);
      step.pages = tables.data();
      step.partials = partials.data();
      step.mixed = mixed.data() + size(first * S.attention_dim());
      change(step);
      decode_attention<Model>(stream(), layer, attention_layer, step, step_rows);
    });
    return {on_host(mixed), on_host(newest)};
  }

  /// Of what a call from `first` on left: a position's key or value (1) of a head.
  AttentionRow row(const AttentionResult& got, int first, int position, int head, int values) const {
    const int full = first / page_positions;
    const int page = position / page_positions;
    const std::uint16_t* const from =
        (page < full ? content.data() + size(page) * page_shift
                     : got.newest.data() + size(page - full) * page_elements<S>()) +
        page_offset<S>(attention_layer, head, values) +
        size(position % page_positions) * Shape::attention_head_dim;
    AttentionRow out{};
    std::transform(from, from + out.size(), out.begin(), as_double);
    return out;
  }
};

/// Where in a token's projection the 256 elements of a head begin: queries and gates take turns, then keys,
/// then values.
AttentionRow projected_row(const float* projected, int place) {
  AttentionRow out{};
  std::copy_n(projected + place * Shape::attention_head_dim, out.size(), out.begin());
  return out;
}

/// A call's last token, and the key and value it leaves.
template <class Model>
void expect_attention(const AttentionLayer<Model>& layer, int position, int count,
                      const AttentionResult& got) {
  constexpr Shape S = Model::shape;
  constexpr int heads = S.attention_heads;
  const int token = count - 1;
  const float* const projected = layer.projected.data() + token * AttentionLayer<Model>::columns;
  const float* const turns = layer.turns.data() + token * Shape::rotary_dim;
  const auto turn = [&](std::size_t j) {
    return std::pair<double, double>(turns[j], turns[Shape::rotary_dim / 2 + j]);
  };
  for (int head = 0; head < S.kv_heads; ++head) {
    const AttentionRow key =
        normed_and_turned(projected_row(projected, 2 * heads + head), layer.key_norm, turn);
    const AttentionRow value = projected_row(projected, 2 * heads + S.kv_heads + head);
    const AttentionRow key_left = layer.row(got, position, position + token, head, 0);
    const AttentionRow value_left = layer.row(got, position, position + token, head, 1);
    RelativeError key_error;  // a value at the edge between two neighbours may be either
    for (std::size_t i = 0; i < key.size(); ++i) {
      key_error.add(key_left[i], as_double(as_bf16(key[i])));
      ASSERT_EQ(value_left[i], as_double(as_bf16(value[i]))) << i << " at " << position;
    }
    EXPECT_LT(key_error.value(), 1e-3) << position;
  }
  std::vector<RelativeError> errors(heads);
  in_parallel(heads, [&](int head) {
    const int kv_head = head * S.kv_heads / heads;
    const AttentionRow q = normed_and_turned(projected_row(projected, 2 * head), layer.query_norm, turn);
    const AttentionRow gate = projected_row(projected, 2 * head + 1);
    const AttentionRow o = attend(
        q, position + count, [&](int p) { return layer.row(got, position, p, kv_head, 0); },
        [&](int p) { return layer.row(got, position, p, kv_head, 1); });
    for (std::size_t i = 0; i < o.size(); ++i) {
      errors[size(head)].add(
          got.mixed[size(token * S.attention_dim() + head * Shape::attention_head_dim) + i],
          o[i] * sigmoid_of(gate[i]));
    }
  });
  for (int head = 0; head < heads; ++head) {
    // Queries of 17 bits: a score's error is below 2^-17 of the length of q and k.
    EXPECT_LT(errors[size(head)].value(), 3e-4) << count << " from " << position << ", head " << head;
  }
}

TYPED_TEST(DecodeMixers, AttentionAsInDouble) {
  const AttentionLayer<TypeParam> layer;
  for (const int position : {0, 1, 7, 62, 63, 64, 127, 255, 256, 1000, 4095, 4096, 8192, 131'072, 262'143})
    expect_attention(layer, position, 1, layer(false, position, 1, 1));
  for (const int position : {0, 60, 250, 4090, 131'067, 262'128})
    expect_attention(layer, position, 16, layer(true, position, 16, 16));
}

TYPED_TEST(DecodeMixers, AttentionGivesTheSameBitsWhereABlockHasLittleMemory) {
  const AttentionLayer<TypeParam> layer;
  for (const int position : {0, 60, 64, 1000, 4097, 8191, 8300, 20'000, 131'071}) {
    const AttentionResult together = layer(true, position, 16, 16);
    const AttentionResult little = layer(true, position, 16, 16, [](DecodeState& state) {
      state.block_memory = std::size_t{99} * 1024;  // of GPUs for screens
    });
    EXPECT_TRUE(same_bits(little.mixed, together.mixed)) << position;
  }
}

TYPED_TEST(DecodeMixers, AttentionGivesTheBitsOfOneByOne) {
  const AttentionLayer<TypeParam> layer;
  // The tokens within a tile of 64 keys, over its end, over a page's end, and with several tiles a split.
  for (const int position : {0, 1, 57, 64, 250, 1000, 4090, 8300, 131'067}) {
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
