#include "cli/backends.h"

#include "base/error.h"
#include "base/thread_team.h"
#include "cpu/backend.h"
#include "cpu/machine.h"
#include "reference/backend.h"
#ifdef CALLA_WITH_CUDA
#include "cuda/backend.h"
#include "cuda/machine.h"
#endif
#ifdef CALLA_WITH_METAL
#include "metal/backend.h"
#include "metal/device_apple.h"
#include "metal/machine.h"
#include "metal/self_test.h"
#endif

namespace calla::cli {
namespace {

// GPUs are looked for once: a process's does not come and go.
#ifdef CALLA_WITH_CUDA
const cuda::Device& nvidia_gpu() {
  static const cuda::Device device = cuda::find_device();
  return device;
}
#endif
#ifdef CALLA_WITH_METAL
const metal::AppleGpu& apple_gpu() {
  static const metal::AppleGpu device = [] {
    metal::AppleGpu found = metal::find_apple_device();
    if (!found.reason.empty()) return found;
    try {
      metal::require_simd_groups(*metal::make_apple_device(demo));
      return found;
    } catch (const Error& error) {
      return metal::AppleGpu{.name = {}, .reason = error.what(), .architecture = found.architecture};
    }
  }();
  return device;
}
#endif

/// Why a kind that needs a GPU has none; empty where it has.
std::string reason_against(BackendKind kind) {
#ifdef CALLA_WITH_CUDA
  if (kind == BackendKind::cuda) return nvidia_gpu().reason;
#endif
#ifdef CALLA_WITH_METAL
  if (kind == BackendKind::metal) return apple_gpu().reason;
#endif
  static_cast<void>(kind);
  return {};
}

/// The kind for the GPU that this build knows of, or the CPU.
constexpr BackendKind gpu_kind() {
#if defined(CALLA_WITH_CUDA)
  return BackendKind::cuda;
#elif defined(CALLA_WITH_METAL)
  return BackendKind::metal;
#else
  return BackendKind::cpu;
#endif
}

void require_built([[maybe_unused]] BackendKind kind) {
#ifndef CALLA_WITH_CUDA
  if (kind == BackendKind::cuda)
    throw Error("--backend cuda", "is not part of this build", "build with -DCALLA_CUDA=ON");
#endif
#ifndef CALLA_WITH_METAL
  if (kind == BackendKind::metal)
    throw Error("--backend metal", "is not part of this build", "build on a Mac with Apple silicon");
#endif
}

}  // namespace

BackendKind backend_kind(const ModelFlags& flags) {
  if (flags.backend == BackendKind::automatic)
    return reason_against(gpu_kind()).empty() ? gpu_kind() : BackendKind::cpu;
  require_built(flags.backend);
  if (const std::string reason = reason_against(flags.backend); !reason.empty()) {
    throw Error(flags.backend == BackendKind::cuda ? "--backend cuda" : "--backend metal", reason,
                "run with --backend cpu");
  }
  return flags.backend;
}

std::string fallback_reason(const ModelFlags& flags) {
  return flags.backend == BackendKind::automatic ? reason_against(gpu_kind()) : std::string();
}

std::string device_name(const ModelFlags& flags) {
  switch (backend_kind(flags)) {
#ifdef CALLA_WITH_CUDA
    case BackendKind::cuda:
      return nvidia_gpu().name;
#endif
#ifdef CALLA_WITH_METAL
    case BackendKind::metal:
      return apple_gpu().name;
#endif
    case BackendKind::cpu:
      return cpu::device_name(thread_count(flags));
    default:
      return std::string(reference::device_name);
  }
}

std::string describe_device(const ModelFlags& flags, [[maybe_unused]] const Shape& shape) {
#ifdef CALLA_WITH_METAL
  if (backend_kind(flags) == BackendKind::metal) {
    const std::unique_ptr<metal::Device> device = metal::make_apple_device(shape);
    return metal::describe(*device, metal::examine_tensor_units(*device, shape));
  }
#endif
  return device_name(flags);
}

int thread_count(const ModelFlags& flags) {
  switch (backend_kind(flags)) {
    case BackendKind::cuda:
    case BackendKind::metal:
      return 0;
    case BackendKind::cpu:
      return flags.threads.value_or(usable_cores());
    default:
      return 1;
  }
}

std::optional<std::uint64_t> available_memory(const ModelFlags& flags) {
#ifdef CALLA_WITH_CUDA
  if (backend_kind(flags) == BackendKind::cuda) return nvidia_gpu().available;
#endif
#ifdef CALLA_WITH_METAL
  // The GPU's share of the memory that it has in common with the processor.
  if (backend_kind(flags) == BackendKind::metal) return apple_gpu().working_set;
#endif
  static_cast<void>(flags);
  return calla::available_memory();
}

std::optional<std::uint64_t> available_host_memory(const ModelFlags& flags) {
  return backend_kind(flags) == BackendKind::cuda ? calla::available_memory() : std::nullopt;
}

double read_bandwidth(const ModelFlags& flags) {
#ifdef CALLA_WITH_CUDA
  if (backend_kind(flags) == BackendKind::cuda) return cuda::read_bandwidth();
#endif
#ifdef CALLA_WITH_METAL
  if (backend_kind(flags) == BackendKind::metal)
    return metal::read_bandwidth(*metal::make_apple_device(demo));
#endif
  return cpu::read_bandwidth(thread_count(flags));
}

double product_peak(const ModelFlags& flags) {
#ifdef CALLA_WITH_CUDA
  if (backend_kind(flags) == BackendKind::cuda) return cuda::product_peak();
#endif
#ifdef CALLA_WITH_METAL
  if (backend_kind(flags) == BackendKind::metal) return metal::product_peak(*metal::make_apple_device(demo));
#endif
  return cpu::product_peak(thread_count(flags));
}

std::string product_name(const ModelFlags& flags) {
  switch (backend_kind(flags)) {
    case BackendKind::cuda:
      return "half products of 16 x 8 x 16 (mma.sync)";
    case BackendKind::metal:
      return "float products of 8 x 8 x 8 (simdgroup_matrix)";
    default:
      return "4-bit by 8-bit products";
  }
}

MemoryPlan plan_backend(const ModelFlags& flags, const Shape& shape, std::uint64_t weight_bytes, int slots,
                        int context) {
  switch (backend_kind(flags)) {
#ifdef CALLA_WITH_CUDA
    case BackendKind::cuda:
      return cuda::plan(shape, slots, context);
#endif
#ifdef CALLA_WITH_METAL
    case BackendKind::metal:
      return metal::plan(shape, weight_bytes, slots, context);
#endif
    case BackendKind::cpu:
      return cpu::plan(shape, slots, context);
    default:
      return reference::plan(shape, weight_bytes, slots, context);
  }
}

std::unique_ptr<Backend> make_backend(const ModelFlags& flags, const ModelWeights& model,
                                      const MemoryPlan& plan, const LoadProgress& progress) {
  const int slots = plan.slots;
  const int context = plan.context;
  switch (backend_kind(flags)) {
#ifdef CALLA_WITH_CUDA
    case BackendKind::cuda:
      return cuda::make_backend(model.config.shape, model.weights, slots, context, plan.snapshots, progress);
#endif
#ifdef CALLA_WITH_METAL
    case BackendKind::metal:
      return metal::make_backend(metal::make_apple_device(model.config.shape), model.config.shape,
                                 model.weights, slots, context, progress);
#endif
    case BackendKind::cpu:
      return cpu::make_backend(model.config.shape, model.weights, slots, context, thread_count(flags),
                               progress);
    default:
      // The reference reads the mapped files as it runs.
      if (model.store != nullptr) prefetch(*model.store, progress);
      return reference::make_backend(model.config.shape, model.weights, slots, context);
  }
}

}  // namespace calla::cli
