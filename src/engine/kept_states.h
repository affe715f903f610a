// What the engine keeps of the prompts that it has read: in memory, and on disk where there is a folder.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/token.h"
#include "engine/disk_cache.h"
#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "model/backend.h"

namespace calla {

/// Of the engine's thread alone.
class KeptStates {
 public:
  /// Throws Error when cache_dir cannot be used. The backend must outlive it.
  KeptStates(Backend& backend, const EngineOptions& options);

  bool on() const { return memory_.limit() > 0; }

  /// Files that lead to a state, the next one last, and what has been loaded of them.
  struct Loading {
    std::vector<DiskCache::Step> files;
    std::shared_ptr<const Snapshot> loaded = nullptr;
    std::shared_ptr<const Snapshot> in_memory = nullptr;  // what there is without them

    /// The longer one; null where there is none.
    const Snapshot* best() const;
  };
  /// What is there for a prompt: a state in memory, or, where files reach further, files to load first.
  struct Found {
    PrefixCache::Match match;
    std::optional<Loading> loading = {};
  };
  Found find(std::span<const Token> prompt, int most);
  /// Loads the next file, which is about as much work as a piece of a prompt. When it was the last one, or
  /// one is of no use, no files are left and `loaded` is as far as it went, or null.
  void load_next(std::span<const Token> prompt, Loading& loading);

  /// How much of a prompt is in memory.
  int longest(std::span<const Token> prompt, int most) const { return memory_.longest(prompt, most); }
  std::shared_ptr<const Snapshot> exactly(std::span<const Token> tokens) const {
    return memory_.exactly(tokens);
  }

  /// Keeps the state of a slot, which holds these tokens. That the backend has no memory for it, or the disk
  /// no room, is no fault.
  void keep(int slot, std::span<const Token> tokens);

  /// Gives the backend memory back that is kept; false where there is none to give.
  bool give_way() { return memory_.give_way(); }

  /// Fills in the figures of the cache.
  void count(EngineStats& stats);

 private:
  Backend* backend_;
  std::function<void(const std::string& line)> log_;
  PrefixCache memory_;
  std::optional<DiskCache> disk_;
};

}  // namespace calla
