#include "cuda/delta_prefill.h"

#include <array>
#include <bit>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/mixer_references.h"
#include "cuda/mixer_support.h"
#include "cuda/state.h"

namespace calla::cuda {
namespace {

constexpr int dim = Shape::delta_head_dim;
constexpr int taps = Shape::convolution_taps;

enum class Kind {
  ordinary,
  parallel_keys,  // hardly differing keys, beta near 1, hardly any decay: the triangular inverse cancels
  strong_decay,   // the running sum of a chunk's log decay reaches -1000
};

/// A layer's weights, the inputs of some tokens, and the state before them, for one sequence.
template <Shape S>
struct Inputs {
  static constexpr int channels = S.convolution_channels();
  static constexpr int width = channels + S.delta_value_dim();
  static constexpr int heads = S.delta_value_heads;

  int tokens;
  int position;
  std::vector<__half> projected;
  std::vector<float> gates;
  std::vector<float> convolution = normal_values(std::size_t{taps} * channels, 0.2F, 0.4F, 2);
  std::vector<float> a_log = normal_values(heads, 0.0F, 1.0F, 3);
  std::vector<float> dt_bias = normal_values(heads, 0.0F, 1.0F, 4);
  std::vector<float> norm = normal_values(dim, 1.0F, 0.3F, 5);
  std::vector<float> state;
  std::vector<float> window;

  Inputs(int token_count, int first_position, Kind kind = Kind::ordinary)
      : tokens(token_count),
        position(first_position),
        gates(normal_values(static_cast<std::size_t>(token_count) * 2 * heads, 0.0F, 1.5F, 6)),
        state(std::size_t{heads} * dim * dim, 0.0F),
        window(std::size_t{taps} * channels, NAN) {
    const auto rows = static_cast<std::size_t>(tokens);
    std::vector<float> x = normal_values(rows * width, 0.0F, 1.0F, 7);
    for (std::size_t t = 0; t < rows; ++t) {
      for (int h = 0; h < heads; ++h) {
        float& a = gates[t * 2 * heads + static_cast<std::size_t>(h)];
        float& b = gates[t * 2 * heads + static_cast<std::size_t>(heads + h)];
        if (kind == Kind::parallel_keys) {
          a = -9.0F;
          b = 7.0F;
        } else if (kind == Kind::strong_decay) {
          a = t % 7 == 0 ? -9.0F : 2.0F;
        }
      }
      if (kind != Kind::parallel_keys) continue;
      for (int c = S.delta_key_dim(); c < 2 * S.delta_key_dim(); ++c) {
        float& k = x[t * width + static_cast<std::size_t>(c)];
        k = 0.01F * k + x[static_cast<std::size_t>(c)];
      }
    }
    if (kind == Kind::strong_decay) a_log.assign(heads, 2.8F);
    projected = as_halves(x);
    if (position == 0) return;
    state = normal_values(state.size(), 0.0F, 0.2F, 8);
    const std::vector<float> earlier = normal_values(std::size_t{taps} * channels, 0.0F, 1.0F, 9);
    for (int p = std::max(position - taps + 1, 0); p < position; ++p) {
      const std::size_t row = static_cast<std::size_t>(p % taps) * channels;
      std::copy_n(earlier.begin() + static_cast<std::ptrdiff_t>(row), channels,
                  window.begin() + static_cast<std::ptrdiff_t>(row));
    }
  }
};

struct Outputs {
  std::vector<__half> y;
  std::vector<float> state;
  std::vector<float> window;
};

/// Runs the kernels, in calls of `piece` tokens.
template <Shape S>
Outputs run(const Inputs<S>& in, int piece, DeltaKernel kernel) {
  const auto projected = on_device(in.projected);
  const auto gates = on_device(in.gates);
  const auto convolution = on_device(in.convolution);
  const auto a_log = on_device(in.a_log);
  const auto dt_bias = on_device(in.dt_bias);
  const auto norm = on_device(in.norm);
  const auto state = on_device(in.state);
  const auto window = on_device(in.window);
  const auto y = poisoned<__half>(static_cast<std::size_t>(in.tokens) * S.delta_value_dim());
  const auto workspace = poisoned<std::byte>(delta_prefill_workspace<S>(std::min(piece, in.tokens)));
  const Stream stream = make_stream();
  for (int first = 0; first < in.tokens; first += piece) {
    const auto row = static_cast<std::size_t>(first);
    delta_prefill<S>({.projected = projected.data() + row * Inputs<S>::width,
                      .stride = Inputs<S>::width,
                      .gates = gates.data() + row * 2 * S.delta_value_heads,
                      .convolution = convolution.data(),
                      .a_log = a_log.data(),
                      .dt_bias = dt_bias.data(),
                      .norm = norm.data(),
                      .state = state.data(),
                      .window = window.data(),
                      .tokens = std::min(piece, in.tokens - first),
                      .position = in.position + first,
                      .y = y.data() + row * S.delta_value_dim(),
                      .workspace = workspace.data()},
                     kernel, stream.get());
  }
  check(cudaStreamSynchronize(stream.get()), "running DeltaNet prefill");
  return {on_host(y), on_host(state), on_host(window)};
}

/// The recurrence token by token in double. Operands have 11 bits: a product's relative error is about 2^-12,
/// and what sums of many such products leave of it about 5e-4.
template <Shape S>
void expect_recurrence(const Inputs<S>& in, const Outputs& got, double tolerance) {
  constexpr int channels = S.convolution_channels();
  constexpr int heads = S.delta_value_heads;
  constexpr int width = Inputs<S>::width;
  std::vector<RelativeError> y_errors(heads);
  std::vector<RelativeError> state_errors(heads);
  const auto convolved = [&](int token, int channel) {
    double sum = 0;
    for (int tap = 0; tap < taps; ++tap) {
      const int t = token - (taps - 1) + tap;
      if (in.position + t < 0) continue;
      const auto c = static_cast<std::size_t>(channel);
      const double x =
          t >= 0 ? static_cast<double>(__half2float(in.projected[static_cast<std::size_t>(t) * width + c]))
                 : in.window[static_cast<std::size_t>((in.position + t) % taps) * channels + c];
      sum += x * in.convolution[c * taps + static_cast<std::size_t>(tap)];
    }
    return silu_of(sum);
  };
  in_parallel(heads, [&](int h) {
    const auto head = static_cast<std::size_t>(h);
    const int key_head = h * S.delta_key_heads / heads;
    DeltaHead reference(std::span(in.state).subspan(head * dim * dim, dim * dim));
    for (int t = 0; t < in.tokens; ++t) {
      const auto row_from = [&](int channel) {
        DeltaRow row{};
        for (int i = 0; i < dim; ++i) row[static_cast<std::size_t>(i)] = convolved(t, channel + i);
        return row;
      };
      const std::size_t gate = static_cast<std::size_t>(t) * 2 * heads + head;
      const DeltaRow o =
          reference.step(row_from(key_head * dim), row_from(S.delta_key_dim() + key_head * dim),
                         row_from(2 * S.delta_key_dim() + h * dim), in.gates[gate], in.gates[gate + heads],
                         in.a_log[head], in.dt_bias[head]);
      const double rms = rms_of(o);
      for (std::size_t j = 0; j < dim; ++j) {
        const std::size_t column = head * dim + j;
        const double z = __half2float(in.projected[static_cast<std::size_t>(t) * width + channels + column]);
        const double expected = o[j] / rms * in.norm[j] * silu_of(z);
        y_errors[head].add(__half2float(got.y[static_cast<std::size_t>(t) * heads * dim + column]), expected);
      }
    }
    for (std::size_t i = 0; i < reference.state().size(); ++i)
      state_errors[head].add(got.state[head * dim * dim + i], reference.state()[i]);
  });

  RelativeError y_error;
  RelativeError state_error;
  for (int h = 0; h < heads; ++h) {
    y_error.add(y_errors[static_cast<std::size_t>(h)]);
    state_error.add(state_errors[static_cast<std::size_t>(h)]);
  }
  const std::string what = fmt::format("{} tokens at {}", in.tokens, in.position);
  EXPECT_LT(y_error.value(), tolerance) << what;
  EXPECT_LT(state_error.value(), tolerance) << what;
  testing::Test::RecordProperty(fmt::format("errors_{}_{}", in.tokens, in.position),
                                fmt::format("{:.1e} {:.1e}", y_error.value(), state_error.value()));

  // The window: the last projections, exactly; rows that no token of this call reached as they were.
  for (int p = std::max(in.position + in.tokens - taps, 0); p < in.position + in.tokens; ++p) {
    const int t = p - in.position;
    for (std::size_t c = 0; c < channels; ++c) {
      const std::size_t at = static_cast<std::size_t>(p % taps) * channels + c;
      const float expected =
          t >= 0 ? __half2float(in.projected[static_cast<std::size_t>(t) * width + c]) : in.window[at];
      const bool same =
          std::bit_cast<std::uint32_t>(got.window[at]) == std::bit_cast<std::uint32_t>(expected);
      ASSERT_TRUE(same) << what << ": window of position " << p << ", channel " << c << ": " << got.window[at]
                        << ", not " << expected;
    }
  }
}

template <Shape S>
void expect_recurrence(DeltaKernel kernel, int tokens, int position, Kind kind = Kind::ordinary,
                       double tolerance = 2e-3) {
  const Inputs<S> in(tokens, position, kind);
  expect_recurrence<S>(in, run<S>(in, tokens, kernel), tolerance);
}

/// For every kernel that the device can run.
class DeltaPrefillTest : public testing::TestWithParam<DeltaKernel> {
 protected:
  void SetUp() override {
    if (GetParam() < delta_kernel()) GTEST_SKIP() << "this GPU cannot run it";
  }
};

TEST_P(DeltaPrefillTest, IsTheRecurrenceAtEveryChunkEdge) {
  for (const int tokens : {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 257})
    expect_recurrence<qwen36_35b>(GetParam(), tokens, 0);
}
TEST_P(DeltaPrefillTest, IsTheRecurrenceAtEveryPosition) {
  for (const int position : {1, 2, 3, 63, 64, 255, 256, 257, 511, 1000, 4095, 262'143})
    expect_recurrence<qwen36_35b>(GetParam(), 5, position);
}
TEST_P(DeltaPrefillTest, IsTheRecurrenceOverManyChunks) {
  expect_recurrence<qwen36_35b>(GetParam(), 1000, 1000);
  expect_recurrence<qwen36_35b>(GetParam(), 8193, 0);
}
TEST_P(DeltaPrefillTest, IsTheRecurrenceOfTheDemo) {
  for (const int tokens : {1, 64, 65, 1000}) expect_recurrence<demo>(GetParam(), tokens, 3);
}
// Here each of a chunk's 64 updates nearly takes back the one before it, so that their roundings, and those
// of the keys, add up to a state that is no larger than one of them: 2^-12 sqrt(2 * 64) and more is no fault
// of the inverse.
TEST_P(DeltaPrefillTest, StandsNearlyParallelKeys) {
  expect_recurrence<qwen36_35b>(GetParam(), 257, 0, Kind::parallel_keys, 8e-3);
  expect_recurrence<qwen36_35b>(GetParam(), 257, 64, Kind::parallel_keys, 8e-3);
}
TEST_P(DeltaPrefillTest, StandsStrongDecay) {
  expect_recurrence<qwen36_35b>(GetParam(), 257, 0, Kind::strong_decay);
  expect_recurrence<qwen36_35b>(GetParam(), 257, 64, Kind::strong_decay);
}

TEST_P(DeltaPrefillTest, PiecesAreTheWholeBitForBit) {
  const Inputs<qwen36_35b> in(577, 128);
  const Outputs whole = run<qwen36_35b>(in, in.tokens, GetParam());
  for (const int piece : {64, 128, 320, 577}) {
    const Outputs pieces = run<qwen36_35b>(in, piece, GetParam());
    EXPECT_TRUE(same_bits(whole.y, pieces.y)) << piece;
    EXPECT_TRUE(same_bits(whole.state, pieces.state)) << piece;
    EXPECT_TRUE(same_bits(whole.window, pieces.window)) << piece;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, DeltaPrefillTest, testing::Values(DeltaKernel::wgmma, DeltaKernel::mma),
                         [](const testing::TestParamInfo<DeltaKernel>& kernel) {
                           return kernel.param == DeltaKernel::wgmma ? "wgmma" : "mma";
                         });

}  // namespace
}  // namespace calla::cuda
