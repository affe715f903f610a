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

namespace calla::cli {
namespace {

#ifdef CALLA_WITH_CUDA
/// Looked for once: a process's GPU does not come and go.
const cuda::Device& gpu() {
  static const cuda::Device device = cuda::find_device();
  return device;
}
#endif

}  // namespace

BackendKind backend_kind(const ModelFlags& flags) {
#ifdef CALLA_WITH_CUDA
  const bool usable = !gpu().name.empty();
  if (flags.backend == BackendKind::automatic) return usable ? BackendKind::cuda : BackendKind::cpu;
  if (flags.backend == BackendKind::cuda && !usable)
    throw Error("--backend cuda", gpu().reason, "run with --backend cpu");
#else
  if (flags.backend == BackendKind::automatic) return BackendKind::cpu;
  if (flags.backend == BackendKind::cuda)
    throw Error("--backend cuda", "is not part of this build", "build with -DCALLA_CUDA=ON");
#endif
  return flags.backend;
}

std::string fallback_reason([[maybe_unused]] const ModelFlags& flags) {
#ifdef CALLA_WITH_CUDA
  if (flags.backend == BackendKind::automatic) return gpu().reason;
#endif
  return {};
}

std::string device_name(const ModelFlags& flags) {
  switch (backend_kind(flags)) {
#ifdef CALLA_WITH_CUDA
    case BackendKind::cuda:
      return gpu().name;
#endif
    case BackendKind::cpu:
      return cpu::device_name(thread_count(flags));
    default:
      return std::string(reference::device_name);
  }
}

int thread_count(const ModelFlags& flags) {
  switch (backend_kind(flags)) {
    case BackendKind::cuda:
      return 0;
    case BackendKind::cpu:
      return flags.threads.value_or(usable_cores());
    default:
      return 1;
  }
}

std::optional<std::uint64_t> available_memory(const ModelFlags& flags) {
#ifdef CALLA_WITH_CUDA
  if (backend_kind(flags) == BackendKind::cuda) return gpu().available;
#endif
  static_cast<void>(flags);
  return calla::available_memory();
}

double read_bandwidth(const ModelFlags& flags) {
#ifdef CALLA_WITH_CUDA
  if (backend_kind(flags) == BackendKind::cuda) return cuda::read_bandwidth();
#endif
  return cpu::read_bandwidth(thread_count(flags));
}

double product_peak(const ModelFlags& flags) {
#ifdef CALLA_WITH_CUDA
  if (backend_kind(flags) == BackendKind::cuda) return cuda::product_peak();
#endif
  return cpu::product_peak(thread_count(flags));
}

std::string product_name(const ModelFlags& flags) {
  return backend_kind(flags) == BackendKind::cuda ? "half products of 16 x 8 x 16 (mma.sync)"
                                                  : "4-bit by 8-bit products";
}

MemoryPlan plan_backend(const ModelFlags& flags, const Shape& shape, std::uint64_t weight_bytes, int slots,
                        int context) {
  switch (backend_kind(flags)) {
#ifdef CALLA_WITH_CUDA
    case BackendKind::cuda:
      return cuda::plan(shape, slots, context);
#endif
    case BackendKind::cpu:
      return cpu::plan(shape, slots, context);
    default:
      return reference::plan(shape, weight_bytes, slots, context);
  }
}

std::unique_ptr<Backend> make_backend(const ModelFlags& flags, const ModelWeights& model, int slots,
                                      int context, const LoadProgress& progress) {
  switch (backend_kind(flags)) {
#ifdef CALLA_WITH_CUDA
    case BackendKind::cuda:
      return cuda::make_backend(model.config.shape, model.weights, slots, context, progress);
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
