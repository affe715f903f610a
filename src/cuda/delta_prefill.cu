// The launches of DeltaNet prefill, and its last kernel: the gated norm, and the window's advance.
#include "cuda/delta_prefill.h"
#include "cuda/delta_prefill_chunks.cuh"
#include "cuda/delta_prefill_scan.cuh"
#include "cuda/delta_prefill_scan_wgmma.cuh"
#include "cuda/device.h"

namespace calla::cuda {
namespace {

constexpr int norm_threads = 256;
constexpr int lanes_a_head = Shape::delta_head_dim / 8;

/// y = y / rms(y) * gain * silu(z), in place, for every head of every token: 16 lanes a head, eight values
/// each. The blocks behind those of y move the last projections into the window, which no kernel before still
/// reads. Bytes: y read and written, z read: 201 MB a layer of 8,192 tokens of the 35B, which bounds it.
template <int key_heads, int value_heads>
__global__ __launch_bounds__(norm_threads) void delta_norm_kernel(DeltaPrefill call) {
  constexpr int dim = Shape::delta_head_dim;
  wait_for_predecessor();
  const std::size_t index = static_cast<std::size_t>(blockIdx.x) * norm_threads + threadIdx.x;
  const int token = static_cast<int>(index / (value_heads * lanes_a_head));
  if (token < call.tokens) {
    const int column = static_cast<int>(index % (value_heads * lanes_a_head)) * 8;
    uint4& values =
        *reinterpret_cast<uint4*>(call.y + static_cast<std::size_t>(token) * value_heads * dim + column);
    const uint4 o = values;
    const uint4 z =
        *reinterpret_cast<const uint4*>(call.projected + static_cast<std::size_t>(token) * call.stride +
                                        delta_channels<key_heads, value_heads> + column);
    const float2 x[4] = {unpack_half(o.x), unpack_half(o.y), unpack_half(o.z), unpack_half(o.w)};
    const float2 gate[4] = {unpack_half(z.x), unpack_half(z.y), unpack_half(z.z), unpack_half(z.w)};
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) squares += x[i].x * x[i].x + x[i].y * x[i].y;
#pragma unroll
    for (int distance = lanes_a_head / 2; distance > 0; distance /= 2)
      squares += __shfl_xor_sync(~0U, squares, distance);
    const float scale = rsqrtf(squares / dim + rms_norm_epsilon);
    const float2* const gain = reinterpret_cast<const float2*>(call.norm + column % dim);
    std::uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[i] = pack_half(x[i].x * scale * gain[i].x * silu(gate[i].x),
                         x[i].y * scale * gain[i].y * silu(gate[i].y));
    }
    values = uint4{out[0], out[1], out[2], out[3]};
  }
  const std::size_t behind = static_cast<std::size_t>(call.tokens) * value_heads * lanes_a_head;
  const std::size_t first = (behind + norm_threads - 1) / norm_threads * norm_threads;
  if (index < first) return;
  const int row = static_cast<int>((index - first) / delta_channels<key_heads, value_heads>);
  const int channel = static_cast<int>((index - first) % delta_channels<key_heads, value_heads>);
  const int last = call.tokens - 1 - row;
  if (row >= Shape::convolution_taps || last < 0) return;
  call.window[static_cast<std::size_t>((call.position + last) % Shape::convolution_taps) *
                  delta_channels<key_heads, value_heads> +
              channel] = __half2float(call.projected[static_cast<std::size_t>(last) * call.stride + channel]);
}

int attribute(cudaDeviceAttr which) {
  int device = 0;
  int value = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDeviceGetAttribute(&value, which, device), "asking for the device's properties");
  return value;
}

int blocks(std::size_t threads) { return static_cast<int>((threads + norm_threads - 1) / norm_threads); }

template <int key_heads, int value_heads>
void launch_scan(const DeltaPrefill& call, const DeltaWorkspace<key_heads, value_heads>& workspace,
                 DeltaKernel kernel, cudaStream_t stream) {
  const dim3 grid(delta_parts, value_heads);
  if (kernel == DeltaKernel::mma) {
    delta_scan_kernel<key_heads, value_heads>
        <<<grid, delta_scan_threads, 0, stream>>>(workspace, call.state, call.y, call.tokens);
    check(cudaGetLastError(), "launching DeltaNet prefill's scan");
    return;
  }
  constexpr int shared_bytes = delta::ScanRing::bytes;
  const auto by_warpgroups = delta_scan_wgmma_kernel<key_heads, value_heads>;
  check(cudaFuncSetAttribute(by_warpgroups, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "preparing DeltaNet prefill");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {delta_cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(delta_scan_wgmma_threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, by_warpgroups, workspace, call.state, call.y, call.tokens),
        "launching DeltaNet prefill's scan");
}

}  // namespace

DeltaKernel delta_kernel() {
  return attribute(cudaDevAttrComputeCapabilityMajor) == 9 ? DeltaKernel::wgmma : DeltaKernel::mma;
}

template <Shape S>
void delta_prefill(const DeltaPrefill& call, DeltaKernel kernel, cudaStream_t stream) {
  constexpr int key_heads = S.delta_key_heads;
  constexpr int value_heads = S.delta_value_heads;
  const int chunks = delta_chunks(call.tokens);
  const DeltaWorkspace<key_heads, value_heads> workspace(call.workspace, chunks);

  constexpr int shared_bytes = sizeof(delta::ChunkTiles);
  const auto chunks_kernel = delta_chunks_kernel<key_heads, value_heads>;
  check(cudaFuncSetAttribute(chunks_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "preparing DeltaNet prefill");
  chunks_kernel<<<dim3(key_heads, chunks), delta_chunks_threads, shared_bytes, stream>>>(call, workspace);
  check(cudaGetLastError(), "launching DeltaNet prefill's chunks");

  launch_scan(call, workspace, kernel, stream);

  const int of_y = blocks(static_cast<std::size_t>(call.tokens) * value_heads * lanes_a_head);
  const int of_window = blocks(static_cast<std::size_t>(Shape::convolution_taps) * S.convolution_channels());
  delta_norm_kernel<key_heads, value_heads><<<of_y + of_window, norm_threads, 0, stream>>>(call);
  check(cudaGetLastError(), "launching DeltaNet prefill's norm");
}

template void delta_prefill<qwen36_35b>(const DeltaPrefill&, DeltaKernel, cudaStream_t);
template void delta_prefill<demo>(const DeltaPrefill&, DeltaKernel, cudaStream_t);

}  // namespace calla::cuda
