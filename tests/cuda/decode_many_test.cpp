// The products of decode. Of many rows each has the bits that it has alone, rows that do not run go to no
// expert, and projections and a sum over the experts that a sort finds are what plain loops in double make
// it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/arrays.h"
#include "cuda/decode.h"
#include "cuda/decode_support.h"
#include "cuda/gemm_matrices.h"
#include "cuda/mixer_references.h"
#include "cuda/mixer_support.h"
#include "cuda/model_types.h"

namespace calla::cuda {
namespace {

constexpr int top = Shape::experts_per_token;

template <class Model>
class DecodeMany : public testing::Test {};
TYPED_TEST_SUITE(DecodeMany, Models, ModelNames);

/// A layer and a head of random weights.
template <class Model>
struct Layer {
  static constexpr Shape S = Model::shape;
  static constexpr int router_rows = 2 * tile_rows * tiles_of_rows(S.experts + 1);

  RandomMatrices router{1, router_rows, S.hidden,
                        1};  // each tile of low halves has one of high halves behind
  RandomMatrices shared_gate_up{1, 2 * S.shared_expert_hidden, S.hidden, 2};
  RandomMatrices shared_down{1, S.hidden, S.shared_expert_hidden, 3};
  RandomMatrices gate_up{S.experts, 2 * S.expert_hidden, S.hidden, 4};
  RandomMatrices down{S.experts, S.hidden, S.expert_hidden, 5};
  RandomMatrices in{1, projected_columns<S>(), S.hidden, 6};
  RandomMatrices out_delta{1, S.hidden, S.delta_value_dim(), 7};
  RandomMatrices out_attention{1, S.hidden, S.attention_dim(), 8};
  std::vector<float> gain = normal_values(S.hidden, 1, 0.2F, 9);
  DeviceArray<float> device_gain = on_device(gain);
  std::vector<DeviceArray<std::uint8_t>> memory;
  DeviceLayer layer;
  DeviceWeights weights;

  Layer() {
    const auto tiles = [&](const RandomMatrices& m) { return Tiles{packed(m), m.rows, m.columns}; };
    layer.input_norm = device_gain.data();
    layer.post_attention_norm = device_gain.data();
    layer.router_tiles = tiles(router);
    layer.shared_gate_up = tiles(shared_gate_up);
    layer.shared_down = tiles(shared_down);
    layer.expert_gate_up = {packed(gate_up), S.experts, gate_up.rows, gate_up.columns};
    layer.expert_down = {packed(down), S.experts, down.rows, down.columns};
    layer.in = tiles(in);
    weights.norm = device_gain.data();
    weights.head = {layer.in.data, S.vocabulary < in.rows ? S.vocabulary : in.rows, S.hidden};
    delta = tiles(out_delta);
    attention = tiles(out_attention);
  }
  Tiles delta;
  Tiles attention;

 private:
  const std::byte* packed(const RandomMatrices& matrices) {
    memory.push_back(on_device(matrices.pack()));
    return reinterpret_cast<const std::byte*>(memory.back().data());
  }
};

template <class Model>
const Layer<Model>& layer() {
  static const Layer<Model> only;
  return only;
}

/// What rows come with, [row][...].
struct Inputs {
  std::vector<std::vector<float>> x;
  std::vector<std::vector<float>> mixed;
  std::vector<std::vector<float>> squares;
};

template <class Model>
Inputs inputs(int rows) {
  constexpr Shape S = Model::shape;
  Inputs all;
  for (int row = 0; row < rows; ++row) {
    const auto seed = static_cast<unsigned>(100 * row);
    all.x.push_back(normal_values(S.hidden, 0.1F, 1 + static_cast<float>(row), seed));
    all.mixed.push_back(normal_values(mixed_columns<S>(), 0, 2, seed + 1));
    std::vector<float> squares = normal_values(S.delta_value_heads * 4, 100, 10, seed + 2);
    all.squares.push_back(squares);
  }
  return all;
}

/// Device memory of a step in which row i has the inputs `chosen[i]` and slot i; all else is poisoned.
template <class Model>
struct Step {
  static constexpr Shape S = Model::shape;
  DeviceArray<int> slots;
  DeviceArray<int> active;
  DeviceArray<float> x = poisoned<float>(size(most_rows * S.hidden));
  DeviceArray<float> mixed = poisoned<float>(size(most_rows * mixed_columns<S>()));
  DeviceArray<float> squares = poisoned<float>(size(most_rows * S.delta_value_heads * 4));
  DeviceArray<float> projected = poisoned<float>(size(most_rows * projected_columns<S>()));
  DeviceArray<float> router = poisoned<float>(size(most_rows * (S.experts + 1)));
  DeviceArray<float> inner = poisoned<float>(size(most_rows * top * S.expert_hidden));
  DeviceArray<float> shared = poisoned<float>(size(most_rows * S.shared_expert_hidden));
  DeviceArray<float> answers = poisoned<float>(size(most_rows * answer_columns<S>()));
  DeviceArray<float> logits = poisoned<float>(size(most_rows * S.vocabulary));
  DeviceArray<Groups> groups = poisoned<Groups>(1);
  DecodeState state;

  Step(const Inputs& all, const std::vector<int>& chosen, const std::vector<int>& idle = {},
       int mixed_width = mixed_columns<S>()) {
    std::vector<int> row_slots(most_rows, -1);
    std::vector<int> row_active(most_rows, 0);
    const auto put = [](const DeviceArray<float>& array, int row, std::span<const float> values) {
      upload(array.data() + size(row) * values.size(), values.data(), values.size_bytes());
    };
    for (int row = 0; row < static_cast<int>(chosen.size()); ++row) {
      const std::size_t from = size(chosen[size(row)]);
      put(x, row, all.x[from]);
      put(mixed, row, std::span(all.mixed[from]).first(size(mixed_width)));
      put(squares, row, all.squares[from]);
      row_slots[size(row)] = row;
      row_active[size(row)] = 1;
    }
    for (const int row : idle) row_active[size(row)] = 0;
    slots = on_device(row_slots);
    active = on_device(row_active);
    state.slots = slots.data();
    state.active = active.data();
    state.block_memory = most_shared_memory();
    state.x = x.data();
    state.mixed = mixed.data();
    state.squares = squares.data();
    state.projected = projected.data();
    state.router = router.data();
    state.inner = inner.data();
    state.shared = shared.data();
    state.answers = answers.data();
    state.groups = groups.data();
    state.logits = logits.data();
    check(cudaDeviceSynchronize(), "filling memory");
  }

  static std::vector<float> row_of(const DeviceArray<float>& array, int row, int columns) {
    return on_host(array.data() + size(row) * size(columns), size(columns));
  }
};

std::vector<int> first_rows(int count) {
  std::vector<int> rows(size(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

enum class Kind { project, output_of_delta, output_of_attention, experts, head };

/// What a stage gives for a row, [columns] of the array it writes.
template <class Model>
struct Stage {
  Kind kind;
  const char* name;
  std::function<void(const DecodeState&, int rows)> run;
  std::function<std::vector<float>(const Step<Model>&, int row)> result;
  int mixed_width = mixed_columns<Model::shape>();  // of a row of the mixer's output
};

template <class Model>
std::vector<Stage<Model>> stages() {
  const auto x = [](const Step<Model>& step, int row) {
    return step.row_of(step.x, row, Model::shape.hidden);
  };
  const auto output = [](bool is_attention) {
    return [is_attention](const DecodeState& state, int rows) {
      DeviceLayer with_out = layer<Model>().layer;
      with_out.out = is_attention ? layer<Model>().attention : layer<Model>().delta;
      decode_output<Model>(stream(), with_out, is_attention, state, rows);
    };
  };
  return {
      {Kind::project, "project",
       [](const DecodeState& state, int rows) {
         decode_project<Model>(stream(), layer<Model>().layer, state, rows);
       },
       [](const Step<Model>& step, int row) {
         return step.row_of(step.projected, row, projected_columns<Model::shape>());
       }},
      {Kind::output_of_delta, "output of DeltaNet", output(false), x, Model::shape.delta_value_dim()},
      {Kind::output_of_attention, "output of attention", output(true), x, Model::shape.attention_dim()},
      {Kind::experts, "experts",
       [](const DecodeState& state, int rows) {
         decode_experts<Model>(stream(), layer<Model>().layer, state, rows);
       },
       x},
      {Kind::head, "head",
       [](const DecodeState& state, int rows) {
         decode_head<Model>(stream(), layer<Model>().weights, state, rows);
       },
       [](const Step<Model>& step, int row) {
         std::vector<float> logits = step.row_of(step.logits, row, Model::shape.vocabulary);
         logits.resize(size(layer<Model>().weights.head.rows));
         return logits;
       }},
  };
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

/// The first element of `got` that has other bits, for people.
std::string difference(const std::vector<float>& got, const std::vector<float>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], sizeof(float)) != 0)
      return fmt::format("element {} of {}: {} for {}", i, got.size(), got[i], expected[i]);
  }
  return "none";
}

template <class Model>
void expect_rows_as_alone(const Inputs& all, std::size_t block_memory = most_shared_memory()) {
  for (const Stage<Model>& stage : stages<Model>()) {
    std::vector<std::vector<float>> alone;
    for (int row = 0; row < most_rows; ++row) {
      const Step<Model> step(all, {row}, {}, stage.mixed_width);
      stage.run(step.state, 1);
      alone.push_back(stage.result(step, 0));
      ASSERT_TRUE(all_finite(alone.back())) << stage.name << ", row " << row << " alone";
    }
    for (const int rows : {2, 4, 5, 7, 8, 9, 13, 16}) {
      Step<Model> step(all, first_rows(rows), {}, stage.mixed_width);
      step.state.block_memory = block_memory;
      stage.run(step.state, rows);
      for (int row = 0; row < rows; ++row) {
        ASSERT_EQ(difference(stage.result(step, row), alone[size(row)]), "none")
            << stage.name << ", row " << row << " of " << rows;
      }
    }
  }
}

TYPED_TEST(DecodeMany, RowsHaveTheBitsOfOneAlone) {
  expect_rows_as_alone<TypeParam>(inputs<TypeParam>(most_rows));
}

TYPED_TEST(DecodeMany, RowsHaveTheBitsOfOneAloneWhereABlockHasLittleMemory) {
  constexpr std::size_t of_gpus_for_screens = 99 * 1024;
  expect_rows_as_alone<TypeParam>(inputs<TypeParam>(most_rows), of_gpus_for_screens);
}

/// Rows that are alike go to the same experts, which then have more than four.
template <class Model>
Inputs alike() {
  Inputs all = inputs<Model>(most_rows);
  for (int row = 0; row < most_rows; ++row) {
    if (row % 5 != 4) all.x[size(row)] = all.x[0];
  }
  return all;
}

TYPED_TEST(DecodeMany, RowsThatAreAlikeHaveTheBitsOfOneAlone) {
  expect_rows_as_alone<TypeParam>(alike<TypeParam>());
}

TYPED_TEST(DecodeMany, IdleRowsGoToNoExpert) {
  constexpr Shape S = TypeParam::shape;
  constexpr int rows = 11;  // of a graph for sixteen
  const Inputs all = inputs<TypeParam>(most_rows);
  const auto run = [&](const std::vector<int>& idle) {
    auto step = std::make_unique<Step<TypeParam>>(all, first_rows(rows), idle);
    decode_experts<TypeParam>(stream(), layer<TypeParam>().layer, step->state, most_rows);
    return step;
  };
  const std::vector<int> idle{1, 2, 10};
  const auto whole = run({});
  const auto some = run(idle);
  for (int row = 0; row < most_rows; ++row) {
    const bool runs = row < rows && std::find(idle.begin(), idle.end(), row) == idle.end();
    for (const float value : some->row_of(some->inner, row, top * S.expert_hidden))
      ASSERT_EQ(std::isfinite(value), runs) << row;
    if (!runs) continue;
    EXPECT_EQ(difference(some->row_of(some->x, row, S.hidden), whole->row_of(whole->x, row, S.hidden)),
              "none")
        << row;
  }
}

/// A row's experts by its logits, the lower id first among equals, and their shares.
struct Choice {
  std::vector<int> experts;
  std::vector<double> shares;
};
Choice choice_of(const float* logits, int experts) {
  Choice choice{.experts = std::vector<int>(size(experts)), .shares = {}};
  std::iota(choice.experts.begin(), choice.experts.end(), 0);
  std::stable_sort(choice.experts.begin(), choice.experts.end(),
                   [&](int a, int b) { return logits[a] > logits[b]; });
  choice.experts.resize(top);
  double total = 0;
  for (const int e : choice.experts) total += std::exp(double{logits[e]} - logits[choice.experts[0]]);
  for (const int e : choice.experts)
    choice.shares.push_back(std::exp(double{logits[e]} - logits[choice.experts[0]]) / total);
  return choice;
}

/// silu(gate x) * up x for a matrix of gate and up rows.
std::vector<double> swiglu(const RandomMatrices& w, int expert, const std::vector<double>& x) {
  std::vector<double> row;
  std::vector<double> products;
  for (int r = 0; r < w.rows; ++r) {
    w.row_of(expert, r, row);
    products.push_back(std::inner_product(row.begin(), row.end(), x.begin(), 0.0));
  }
  std::vector<double> inner;
  for (int channel = 0; channel < w.rows / 2; ++channel) {
    const double gate = products[size(channel / 8 * 16 + channel % 8)];
    const double up = products[size(channel / 8 * 16 + 8 + channel % 8)];
    inner.push_back(silu_of(gate) * up);
  }
  return inner;
}

TYPED_TEST(DecodeMany, EqualExpertsAreTakenInTheirOrder) {
  constexpr Shape S = TypeParam::shape;
  const Layer<TypeParam>& w = layer<TypeParam>();
  // Up to four experts each have the same logits: those 16, 32 and 48 apart.
  std::vector<std::uint8_t> router = w.router.pack();
  constexpr std::size_t sixteen = 2 * tiled_bytes(tile_rows, S.hidden);
  for (std::size_t i = 0; i < size(S.experts / tile_rows); ++i)
    std::copy_n(router.begin() + static_cast<std::ptrdiff_t>(i / 4 * 4 * sixteen), sixteen,
                router.begin() + static_cast<std::ptrdiff_t>(i * sixteen));
  const DeviceArray<std::uint8_t> memory = on_device(router);
  DeviceLayer tied = w.layer;
  tied.router_tiles.data = reinterpret_cast<const std::byte*>(memory.data());

  const Inputs all = inputs<TypeParam>(most_rows);
  const Step<TypeParam> together(all, first_rows(most_rows));
  decode_experts<TypeParam>(stream(), tied, together.state, most_rows);
  for (const int row : {0, 3, 15}) {
    const Step<TypeParam> alone(all, {row});
    decode_experts<TypeParam>(stream(), tied, alone.state, 1);
    const std::vector<float> logits = alone.row_of(alone.router, 0, S.experts + 1);
    for (int e = 16; e < S.experts; ++e) {
      if (e / 16 % 4 == 0) continue;
      ASSERT_EQ(logits[size(e)], logits[size(e - 16)]) << e;
    }
    EXPECT_EQ(difference(alone.row_of(alone.x, 0, S.hidden), together.row_of(together.x, row, S.hidden)),
              "none")
        << row;
    // What the first halves of the chosen give, one behind the other in the order of the choice.
    EXPECT_EQ(difference(alone.row_of(alone.inner, 0, top * S.expert_hidden),
                         together.row_of(together.inner, row, top * S.expert_hidden)),
              "none")
        << row;
  }
}

std::vector<double> normed_by(const std::vector<float>& gain, const std::vector<float>& x) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double rms = std::sqrt(squares / static_cast<double>(x.size()) + rms_norm_epsilon);
  std::vector<double> normed;
  for (std::size_t i = 0; i < x.size(); ++i) normed.push_back(x[i] * gain[i] / rms);
  return normed;
}

TYPED_TEST(DecodeMany, ProjectionsAsInDouble) {
  using Model = TypeParam;
  const Layer<Model>& w = layer<Model>();
  const Inputs all = inputs<Model>(most_rows);
  const auto product = [](const RandomMatrices& matrix, const std::vector<double>& x, int row) {
    std::vector<double> weights;
    matrix.row_of(0, row, weights);
    return std::inner_product(weights.begin(), weights.end(), x.begin(), 0.0);
  };
  for (const Stage<Model>& stage : stages<Model>()) {
    if (stage.kind == Kind::experts) continue;
    const bool of_delta = stage.kind == Kind::output_of_delta;
    const bool out = of_delta || stage.kind == Kind::output_of_attention;
    const RandomMatrices& matrix = !out ? w.in : of_delta ? w.out_delta : w.out_attention;
    for (const int rows : {1, 3, 16}) {
      const Step<Model> step(all, first_rows(rows), {}, stage.mixed_width);
      stage.run(step.state, rows);
      const int row = rows - 1;
      const std::vector<float>& x = all.x[size(row)];
      const std::vector<float> got = stage.result(step, row);
      std::vector<double> activations = normed_by(w.gain, x);
      if (out) {
        activations.assign(all.mixed[size(row)].begin(), all.mixed[size(row)].begin() + matrix.columns);
        if (of_delta) {
          for (std::size_t i = 0; i < activations.size(); ++i) {
            const float* const squares = all.squares[size(row)].data() + i / Shape::delta_head_dim * 4;
            const double sum = double{squares[0]} + squares[1] + squares[2] + squares[3];
            activations[i] /= std::sqrt(sum / Shape::delta_head_dim + rms_norm_epsilon);
          }
        }
      }
      RelativeError error;
      for (int i = 0; i < static_cast<int>(got.size()); ++i) {
        const double residual = out ? x[size(i)] : 0;
        error.add(got[size(i)] - residual, product(matrix, activations, i));
      }
      // Activations of 22 bits, sums of float32, and with a residual its rounding.
      EXPECT_LT(error.value(), 1e-5) << stage.name << ", " << rows << " rows";
    }
  }
}

TYPED_TEST(DecodeMany, ExpertsAsInDouble) {
  using Model = TypeParam;
  constexpr Shape S = Model::shape;
  const Layer<Model>& w = layer<Model>();
  const Inputs all = inputs<Model>(most_rows);
  const Step<Model> step(all, first_rows(most_rows));
  decode_experts<Model>(stream(), w.layer, step.state, most_rows);
  for (const int row : {0, 6, 15}) {
    const std::vector<float>& x = all.x[size(row)];
    const std::vector<double> normed = normed_by(w.gain, x);
    std::vector<float> logits;
    std::vector<double> low;
    std::vector<double> high;
    for (int e = 0; e <= S.experts; ++e) {
      const int first = e / tile_rows * 2 * tile_rows + e % tile_rows;
      w.router.row_of(0, first, low);
      w.router.row_of(0, first + tile_rows, high);
      logits.push_back(static_cast<float>(std::inner_product(low.begin(), low.end(), normed.begin(), 0.0) +
                                          std::inner_product(high.begin(), high.end(), normed.begin(), 0.0)));
    }
    const Choice choice = choice_of(logits.data(), S.experts);
    std::vector<double> expected(x.begin(), x.end());
    std::vector<double> weights;
    const auto add = [&](const RandomMatrices& down, int expert, const std::vector<double>& inner,
                         double share) {
      for (int r = 0; r < S.hidden; ++r) {
        down.row_of(expert, r, weights);
        expected[size(r)] += share * std::inner_product(weights.begin(), weights.end(), inner.begin(), 0.0);
      }
    };
    for (int i = 0; i < top; ++i) {
      const int expert = choice.experts[size(i)];
      add(w.down, expert, swiglu(w.gate_up, expert, normed), choice.shares[size(i)]);
    }
    add(w.shared_down, 0, swiglu(w.shared_gate_up, 0, normed), sigmoid_of(logits.back()));
    const std::vector<float> got = step.row_of(step.x, row, S.hidden);
    double wrong = 0;
    double norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      wrong += (got[i] - expected[i]) * (got[i] - expected[i]);
      norm += (expected[i] - x[i]) * (expected[i] - x[i]);
    }
    // Activations of 22 bits, sums of float32, and shares that turn on a difference of logits.
    EXPECT_LT(std::sqrt(wrong / norm), 1e-4) << "row " << row;
  }
}

}  // namespace
}  // namespace calla::cuda
