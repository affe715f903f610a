// The kinds of backends: where each runs, what it needs, how it is made.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/loader.h"
#include "cli/commands.h"
#include "cli/open.h"
#include "model/backend.h"
#include "model/memory_plan.h"

namespace calla::cli {

/// Backend::device() of the backend that the flags ask for.
std::string device_name(const ModelFlags& flags);
/// How many threads it computes with.
int thread_count(const ModelFlags& flags);
/// What it is going to allocate.
MemoryPlan plan_backend(const ModelFlags& flags, const Shape& shape, std::uint64_t weight_bytes, int slots,
                        int context);
/// Makes it. Throws Error when memory is refused or the disk fails.
std::unique_ptr<Backend> make_backend(const ModelFlags& flags, const ModelWeights& model, int slots,
                                      int context, const LoadProgress& progress);

}  // namespace calla::cli
