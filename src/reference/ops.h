// The few operations the model is made of, on rows of float32. Matrices are row-major; "rows" of an
// activation are tokens.
#pragma once
#include <span>
#include <vector>

#include "model/affine.h"

namespace calla::reference {

/// The sum of x[i] * y[i].
float dot(std::span<const float> x, std::span<const float> y);

/// Activations, [tokens, width].
using Rows = std::vector<float>;

/// y[t, r] = sum over c of w[r, c] * x[t, c], for all tokens t: x is [tokens, w.columns], the result [tokens,
/// w.rows].
Rows linear(const AffineMatrix& w, std::span<const float> x);

/// y = gain * x / sqrt(mean(x^2) + epsilon), over each row of gain.size() elements. y may be x.
void rms_norm(std::span<const float> x, std::span<const float> gain, std::span<float> y);
Rows rms_norm(std::span<const float> x, std::span<const float> gain);

/// x = x / sqrt(sum(x^2) + 1e-6), times `scale`.
void l2_normalise(std::span<float> x, float scale);

/// x = softmax(x).
void softmax(std::span<float> x);

float sigmoid(float x);
float silu(float x);      // x * sigmoid(x)
float softplus(float x);  // log(1 + exp(x))

}  // namespace calla::reference
