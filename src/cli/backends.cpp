#include "cli/backends.h"

#include "base/thread_team.h"
#include "cpu/backend.h"
#include "reference/backend.h"

namespace calla::cli {

std::string device_name(const ModelFlags& flags) {
  switch (flags.backend) {
    case BackendKind::cpu:
      return cpu::device_name(thread_count(flags));
    case BackendKind::reference:
      break;
  }
  return std::string(reference::device_name);
}

int thread_count(const ModelFlags& flags) {
  return flags.backend == BackendKind::reference ? 1 : flags.threads.value_or(usable_cores());
}

MemoryPlan plan_backend(const ModelFlags& flags, const Shape& shape, std::uint64_t weight_bytes, int slots,
                        int context) {
  switch (flags.backend) {
    case BackendKind::cpu:
      return cpu::plan(shape, slots, context);
    case BackendKind::reference:
      break;
  }
  return reference::plan(shape, weight_bytes, slots, context);
}

std::unique_ptr<Backend> make_backend(const ModelFlags& flags, const ModelWeights& model, int slots,
                                      int context, const LoadProgress& progress) {
  switch (flags.backend) {
    case BackendKind::cpu:
      return cpu::make_backend(model.config.shape, model.weights, slots, context, thread_count(flags),
                               progress);
    case BackendKind::reference:
      break;
  }
  // The reference reads the mapped files as it runs.
  if (model.store != nullptr) prefetch(*model.store, progress);
  return reference::make_backend(model.config.shape, model.weights, slots, context);
}

}  // namespace calla::cli
