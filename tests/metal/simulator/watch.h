// Watches what checked kernels do with memory: the compiler's thread-sanitizer instrumentation calls it
// before each access.
//
// Every word of memory that somebody may write has a cell with its last write and its last read. From these
// come races of threads that no barrier orders, of threadgroups, and of dispatches between two barriers; and
// whether a barrier orders anything at all. A read of a word that holds the poison is one of memory that
// nothing wrote.
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "metal/simulator/memory.h"
#include "metal/simulator/threadgroup.h"

namespace calla::metal::simulation {

/// A dispatch's argument that is a place in memory.
struct Binding {
  Region* region = nullptr;
  std::byte* address = nullptr;
  const Parameter* parameter = nullptr;
};

/// What the watch needs to know of a dispatch.
struct WatchedDispatch {
  const Kernel* kernel = nullptr;
  std::vector<Binding> bindings;
};

class Watch {
 public:
  using Report = Machine::Report;

  Watch(Memory& memory, Machine& machine, Report report);

  // In the order of execution.
  void begin_pass();
  /// What runs between two barriers. Regions that it, its predecessor or its successor in the pass may write
  /// are watched.
  void begin_level(std::span<const WatchedDispatch* const> dispatches,
                   std::span<const WatchedDispatch* const> next);
  void begin_dispatch(const WatchedDispatch& dispatch);
  void begin_threadgroup();
  /// Whether anything in the level depends on the one before it.
  bool level_depends() const { return depends_; }

  // For the instrumented code; `at` is the instruction behind the access.
  struct Access {
    bool reads;
    bool writes;
    bool atomic = false;
  };
  /// An access of 1, 2, 4, 8 or 16 bytes that must be aligned to its size.
  void access(const void* address, std::size_t bytes, Access access, const void* at);
  /// An access without alignment.
  void access_range(const void* address, std::size_t bytes, Access access, const void* at);
  /// A fault that the compiler's other checks found.
  [[noreturn]] void fault(const std::string& what, const char* file, unsigned line);

  /// Makes this the watch over the kernels that run.
  void activate();
  static inline constinit Watch* active = nullptr;
  /// Whether an address is on the stack of a thread, which is its own business.
  static bool on_stack(const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) - stacks_begin_ < stacks_bytes_;
  }

 private:
  /// An access as a cell remembers it, in the order of execution.
  struct Event {
    std::uint64_t group : 27;         // the threadgroup's number among all that ran; 0: none
    std::uint64_t barriers : 11;      // that its threadgroup had passed
    std::uint64_t simd_barriers : 8;  // that its SIMD-group had passed
    std::uint64_t thread : 10;
    std::uint64_t bytes : 4;  // of the word, a bit each
    std::uint64_t atomic : 1;
    // Of reads: there were others that it does not remember, since the last write or ...
    std::uint64_t other_groups : 1;  // ... by other threadgroups
    std::uint64_t other_simds : 1;   // ... since the last barrier, by other SIMD-groups
    std::uint64_t other_lanes : 1;   // ... since the last barrier of the SIMD-group, by other lanes
  };
  struct Cell {
    Event write;
    Event read;
  };
  static constexpr std::uint32_t max_group = (1U << 27) - 1;

  void word(Cell& cell, unsigned bytes, Access access, bool threadgroup_memory, bool may_write,
            const void* address, const void* at);
  void words(std::uintptr_t address, std::size_t bytes, Access access, Cell* cells, std::uintptr_t base,
             bool threadgroup_memory, bool may_write, const void* at);
  const char* conflict(const Event& event, const Event& now, bool threadgroup_memory) const;
  void access(std::uintptr_t address, std::size_t bytes, bool aligned, Access access, const void* at);
  void device_access(std::uintptr_t address, std::size_t bytes, bool aligned, Access access, const void* at);
  void threadgroup_access(std::uintptr_t address, std::size_t bytes, bool aligned, Access access,
                          const void* at);
  void other_access(std::uintptr_t address, std::size_t bytes, Access access, const void* at);
  void check_written(std::uintptr_t address, std::size_t bytes, const void* at);
  bool is_new(const char* kind, const void* at);
  void report(const char* kind, const std::string& what, const void* at);
  [[noreturn]] void give_up(const char* kind, const std::string& what, const void* at);
  std::string argument(const Region& region) const;
  std::string nearest(std::uintptr_t address) const;
  const Kernel& kernel_of(std::uint32_t group) const;
  void forget();

  static inline constinit std::uintptr_t stacks_begin_ = 0;
  static inline constinit std::uintptr_t stacks_bytes_ = 0;

  Memory* memory_;
  Machine* machine_;
  std::uintptr_t device_begin_;
  std::uintptr_t threadgroup_begin_;
  Report report_;
  std::set<std::tuple<const Kernel*, const char*, const void*>> reported_;  // kernel, kind, instruction
  std::vector<Cell> threadgroup_cells_;
  std::vector<Region*> watched_;
  std::vector<const WatchedDispatch*> before_;  // the level before
  const WatchedDispatch* dispatch_ = nullptr;
  std::uint64_t dispatch_number_ = 0;
  struct Started {
    std::uint32_t group;  // the dispatch's first
    const Kernel* kernel;
  };
  std::vector<Started> started_;  // dispatches of this level
  std::uint32_t group_ = 0;
  std::uint32_t level_begin_ = 1;
  std::uint32_t before_begin_ = 1;  // of the level before
  bool depends_ = false;
};

}  // namespace calla::metal::simulation
