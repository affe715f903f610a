// The forward pass against what Hugging Face transformers computed from the same checkpoint in float32.
#include "reference/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/safetensors.h"
#include "support/demo.h"

namespace calla::reference {
namespace {

using test::demo_weights;

double relative_error(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

double largest_difference(std::span<const float> actual, std::span<const float> expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(double{actual[i]} - double{expected[i]}));
  }
  return largest;
}

std::size_t argmax(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    const auto folder = test::goldens();
    CALLA_REQUIRE(folder, "CALLA_GOLDENS");
    file_ = std::make_unique<SafetensorsFile>(*folder / "demo/golden.safetensors");
  }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const Tensor& tensor = file_->tensors().at(name);
    std::vector<T> values(tensor.bytes.size() / sizeof(T));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }

  std::unique_ptr<SafetensorsFile> file_;
};

TEST_F(Golden, HiddenStatesOfEveryLayer) {
  SequenceState<demo> state;
  std::vector<float> final_hidden;
  int seen = 0;
  final_hidden = forward<demo>(
      demo_weights(), state, read<Token>("0.ids"), [&](int stage, std::span<const float> hidden) {
        ++seen;
        if (stage == demo.layers)
          return;  // the goldens keep the last layer's output only after the final norm
        EXPECT_LT(relative_error(hidden, read<float>(fmt::format("0.hidden.{}", stage))), 1e-5)
            << "stage " << stage;
      });
  EXPECT_EQ(seen, demo.layers + 1);
  EXPECT_LT(relative_error(final_hidden, read<float>("0.hidden.8")), 1e-5);
}

TEST_F(Golden, LogitsAndMultiTokenPrediction) {
  for (int prompt = 0; prompt < 5; ++prompt) {
    SCOPED_TRACE(fmt::format("prompt {}", prompt));
    const auto ids = read<Token>(fmt::format("{}.ids", prompt));
    SequenceState<demo> state;
    const std::vector<float> hidden = forward<demo>(demo_weights(), state, ids);
    const auto compare = [&](const std::vector<float>& actual, const std::string& name) {
      const auto expected = read<float>(name);
      EXPECT_LT(largest_difference(actual, expected), 2e-4) << name;
      for (std::size_t row = 0; row < expected.size(); row += demo.vocabulary) {
        EXPECT_EQ(argmax(std::span(actual).subspan(row, demo.vocabulary)),
                  argmax(std::span(expected).subspan(row, demo.vocabulary)))
            << name << ", position " << row / demo.vocabulary;
      }
    };
    compare(logits<demo>(demo_weights(), hidden), fmt::format("{}.logits", prompt));

    const auto before_last = std::span(hidden).first(hidden.size() - demo.hidden);
    const auto mtp = forward_mtp<demo>(demo_weights(), state, 0, before_last, std::span(ids).subspan(1));
    compare(logits<demo>(demo_weights(), mtp), fmt::format("{}.mtp_logits", prompt));
  }
}

std::vector<Token> some_tokens(std::size_t count) {
  std::vector<Token> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>(i * 2654435761U % 2400);
  return tokens;
}

TEST(Forward, InPiecesAndTokenByTokenIsTheSame) {
  const auto tokens = some_tokens(70);
  SequenceState<demo> whole;
  const auto expected = forward<demo>(demo_weights(), whole, tokens);
  for (const std::size_t piece : {1U, 7U, 32U}) {
    SequenceState<demo> state;
    std::vector<float> actual;
    for (std::size_t done = 0; done < tokens.size(); done += piece) {
      const auto next = std::span(tokens).subspan(done, std::min(piece, tokens.size() - done));
      const auto rows = forward<demo>(demo_weights(), state, next);
      actual.insert(actual.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(state.position, 70);
    EXPECT_LT(relative_error(actual, expected), 1e-5) << "pieces of " << piece;
    for (std::size_t layer = 0; layer < whole.delta.size(); ++layer) {
      EXPECT_LT(relative_error(state.delta[layer].recurrent, whole.delta[layer].recurrent), 1e-5) << layer;
    }
  }
}

TEST(Forward, MultiTokenPredictionInPiecesIsTheSame) {
  const auto tokens = some_tokens(20);
  SequenceState<demo> state;
  const auto hidden = forward<demo>(demo_weights(), state, tokens);
  const auto next = std::span(tokens).subspan(1);
  const auto rows = std::span(hidden).first(next.size() * demo.hidden);
  SequenceState<demo> whole_state;
  const auto whole = forward_mtp<demo>(demo_weights(), whole_state, 0, rows, next);
  SequenceState<demo> pieces_state;
  std::vector<float> pieces;
  for (std::size_t t = 0; t < next.size(); ++t) {
    const auto one = forward_mtp<demo>(demo_weights(), pieces_state, static_cast<int>(t),
                                       rows.subspan(t * demo.hidden, demo.hidden), next.subspan(t, 1));
    pieces.insert(pieces.end(), one.begin(), one.end());
  }
  EXPECT_LT(relative_error(pieces, whole), 1e-5);
}

}  // namespace
}  // namespace calla::reference
