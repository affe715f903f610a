// The beginning of a decode step: the rows' tokens become activations, their positions RoPE's turns.
//
//   x = scale * code + bias, rounded once, as affine.h has it;  turns = cos, sin(position * theta^(-j / 32))
// Angles in double: at position 262,143 a float angle is off by up to 0.016. Bytes moved: a row of the
// embedding.
#include <cuda_runtime.h>

#include "cuda/codes.cuh"
#include "cuda/decode.h"
#include "cuda/decode_rows.cuh"
#include "cuda/launch.h"

namespace calla::cuda {
namespace {

constexpr int codes_of_word = 8;
constexpr int half_turns = Shape::rotary_dim / 2;

__global__ void embed_kernel(EmbeddingRows embedding, DecodeState state) {
  const int row = static_cast<int>(blockIdx.x);
  const int word = static_cast<int>(threadIdx.x);
  wait_for_predecessor();
  release_successor();
  const int slot = state.slots[row];
  if (slot < 0 || state.active[row] == 0) return;

  const auto token = static_cast<std::size_t>(state.tokens[row]);
  const int groups = embedding.columns / Shape::quantization_group;
  const int group = word * codes_of_word / Shape::quantization_group;
  const float scale =
      __uint_as_float(static_cast<std::uint32_t>(embedding.scales[token * groups + group]) << 16);
  const float bias =
      __uint_as_float(static_cast<std::uint32_t>(embedding.biases[token * groups + group]) << 16);
  const std::uint32_t codes = embedding.codes[token * (embedding.columns / codes_of_word) + word];
  float* const x = state.x + static_cast<std::size_t>(row) * embedding.columns + word * codes_of_word;
#pragma unroll
  for (int i = 0; i < codes_of_word; ++i)
    x[i] = __fadd_rn(__fmul_rn(scale, static_cast<float>((codes >> (4 * i)) & 0xFU)), bias);

  if (word < half_turns) {
    const double angle =
        position_of(state, row, slot) * pow(rope_theta, -static_cast<double>(word) / half_turns);
    double sine = 0;
    double cosine = 0;
    sincos(angle, &sine, &cosine);
    state.turns[row * Shape::rotary_dim + word] = static_cast<float>(cosine);
    state.turns[row * Shape::rotary_dim + half_turns + word] = static_cast<float>(sine);
  }
}

}  // namespace

template <class Model>
void decode_embed(cudaStream_t stream, const EmbeddingRows& embedding, const DecodeState& state, int rows) {
  launch_chained(stream, {dim3(static_cast<unsigned>(rows)), Model::shape.hidden / codes_of_word},
                 embed_kernel, embedding, state);
}

template void decode_embed<Qwen36>(cudaStream_t, const EmbeddingRows&, const DecodeState&, int);
template void decode_embed<Demo>(cudaStream_t, const EmbeddingRows&, const DecodeState&, int);

}  // namespace calla::cuda
