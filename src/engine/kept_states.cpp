#include "engine/kept_states.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace calla {

const Snapshot* KeptStates::Loading::best() const {
  if (loaded == nullptr || in_memory == nullptr) return loaded == nullptr ? in_memory.get() : loaded.get();
  return loaded->position() > in_memory->position() ? loaded.get() : in_memory.get();
}

KeptStates::KeptStates(Backend& backend, const EngineOptions& options)
    : backend_(&backend), log_(options.log), memory_(options.cache_memory) {
  if (!on() || options.cache_dir.empty()) return;
  disk_.emplace(options.cache_dir, options.cache_disk, options.model_id + '\n' + backend.snapshot_format(),
                options.log);
}

KeptStates::Found KeptStates::find(std::span<const Token> prompt, int most) {
  if (!on()) return {.match = {.miss = CacheMiss::off, .note = "there is no cache"}};
  if (most == 0) return {.match = {.miss = CacheMiss::too_short, .note = "the prompt is too short"}};
  Found found{.match = memory_.find(prompt, most)};
  if (!disk_) return found;
  disk_->collect();
  std::vector<DiskCache::Step> steps = disk_->find(prompt, most);
  if (steps.empty() || steps.back().position <= found.match.position) return found;
  // What memory holds need not be loaded.
  Loading loading;
  const auto known = std::find_if(steps.rbegin(), steps.rend(), [&](const DiskCache::Step& step) {
    loading.loaded = memory_.exactly(prompt.first(static_cast<std::size_t>(step.position)));
    return loading.loaded != nullptr;
  });
  loading.files.assign(steps.rbegin(), known);
  loading.in_memory = found.match.snapshot;
  found.loading = std::move(loading);
  return found;
}

void KeptStates::load_next(std::span<const Token> prompt, Loading& loading) {
  const DiskCache::Step step = loading.files.back();
  loading.files.pop_back();
  std::shared_ptr<const Snapshot> next;
  try {
    next = disk_->load(step.file, *backend_, loading.loaded.get());
  } catch (const OutOfMemory& fault) {
    if (log_) log_(std::string("cache: a state is not loaded: ") + fault.what());
  }
  if (next == nullptr) {
    loading.files.clear();
    return;
  }
  if (loading.files.empty()) memory_.insert(prompt.first(static_cast<std::size_t>(step.position)), next);
  loading.loaded = std::move(next);
}

void KeptStates::keep(int slot, std::span<const Token> tokens) {
  if (!on() || memory_.exactly(tokens) != nullptr) return;
  try {
    memory_.insert(tokens, backend_->snapshot(slot));
  } catch (const std::exception& fault) {
    if (log_) log_(std::string("cache: a state is not kept: ") + fault.what());
    return;
  }
  if (!disk_) return;
  if (std::shared_ptr<const Snapshot> kept = memory_.exactly(tokens)) disk_->offer(tokens, std::move(kept));
}

void KeptStates::count(EngineStats& stats) {
  stats.cache_bytes = memory_.bytes();
  stats.cache_limit = memory_.limit();
  stats.cache_entries = memory_.entries();
  stats.cache_evictions = memory_.evictions();
  if (!disk_) return;
  disk_->collect();
  stats.disk_bytes = disk_->bytes();
  stats.disk_limit = disk_->limit();
  stats.disk_entries = disk_->entries();
}

}  // namespace calla
