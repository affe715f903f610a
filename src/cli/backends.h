// The kinds of backends: where each runs, what it needs, how it is made.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/loader.h"
#include "cli/commands.h"
#include "cli/open.h"
#include "model/backend.h"
#include "model/memory_plan.h"

namespace calla::cli {

/// The kind that the flags ask for, never BackendKind::automatic. Throws Error where it is not in this build
/// or has no device to run on.
BackendKind backend_kind(const ModelFlags& flags);
/// Why the GPU is not used although this build could and the flags leave it open; empty where there is
/// nothing to tell.
std::string fallback_reason(const ModelFlags& flags);

/// The device of the backend that the flags ask for.
std::string device_name(const ModelFlags& flags);
/// Backend::device() of the backend for a shape: with how the device is going to be used, which takes longer
/// to find out.
std::string describe_device(const ModelFlags& flags, const Shape& shape);
/// How many threads of the processor it computes with; 0 where it is the GPU that computes.
int thread_count(const ModelFlags& flags);
/// Memory that it can still get, in bytes, where it keeps the weights; nothing where the system does not say.
std::optional<std::uint64_t> available_memory(const ModelFlags& flags);
/// Memory of the machine that it can get for snapshots that its device has no room for; nothing where it
/// cannot use any.
std::optional<std::uint64_t> available_host_memory(const ModelFlags& flags);
/// What its device reads at most, bytes a second, and multiplies at most, operations a second; measured,
/// which takes about a second each.
double read_bandwidth(const ModelFlags& flags);
double product_peak(const ModelFlags& flags);
/// The products that product_peak() counts, for people.
std::string product_name(const ModelFlags& flags);
/// What it is going to allocate.
MemoryPlan plan_backend(const ModelFlags& flags, const Shape& shape, std::uint64_t weight_bytes, int slots,
                        int context);
/// Makes it, with the slots, the context and the snapshots of a plan. Throws Error when memory is refused or
/// the disk fails.
std::unique_ptr<Backend> make_backend(const ModelFlags& flags, const ModelWeights& model,
                                      const MemoryPlan& plan, const LoadProgress& progress);

}  // namespace calla::cli
