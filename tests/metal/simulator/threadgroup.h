// Runs the threads of one threadgroup as fibres, one at a time. A thread runs until it meets others or ends;
// then the next lane of its SIMD-group goes on, in an order that is new after each meeting. A SIMD-group runs
// until all its lanes are at a threadgroup's barrier.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "metal/simulator/machine.h"
#include "metal/simulator/random.h"

namespace calla::metal::simulation {

/// A threadgroup's place in its dispatch.
struct Place {
  std::array<unsigned, 3> group;
  std::array<unsigned, 3> groups;  // of the grid
  unsigned threads;                // of a threadgroup
};

class Machine {
 public:
  /// Told of a fault: what it is the same fault as when it comes again, and its description.
  using Report = std::function<void(const std::string& key, const std::string& what)>;

  /// `loose`: kernels of that build will run, with this seed of their errors.
  explicit Machine(Report report, std::optional<std::uint64_t> loose = {});
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  Machine(Machine&&) = delete;
  Machine& operator=(Machine&&) = delete;

  /// Runs a threadgroup. False when it was given up, after a fault that it could not go on from.
  bool run(const Kernel& kernel, void* const* buffers, const Place& place, Random random);

  // For the running threads.
  bool meet(Thread& thread, Meeting meeting, unsigned order, Site site);
  void* threadgroup_array(Thread& thread, unsigned bytes, unsigned alignment, Site site);
  void report(const char* what, unsigned long value, Site site);
  const Place& place() const { return place_; }
  unsigned long threadgroup_random() const { return threadgroup_random_; }
  unsigned long error_seed() const { return loose_.value_or(0); }

  // For the watch over memory.
  /// Barriers of the threadgroup so far that order device memory, or threadgroup memory.
  unsigned barriers(bool threadgroup_memory) const { return barriers_[threadgroup_memory ? 1 : 0]; }
  /// Room for the threadgroup's arrays, which lie in it with gaps; and whether all of some bytes are in
  /// arrays.
  std::span<const std::byte> memory() const { return memory_; }
  bool is_declared(std::size_t offset, std::size_t bytes) const {
    return offset + bytes <= memory_room && declared_[offset] && declared_[offset + bytes - 1];
  }
  /// Where the threads' stacks are.
  std::span<const std::byte> stacks() const;
  /// The kernel, the threadgroup and the thread that run, in words.
  std::string whereabouts() const;
  /// Ends the threadgroup in the middle of whatever its threads are at.
  [[noreturn]] void give_up();

 private:
  struct Stacks;

  void start(SimdGroup& group);
  void finish(Thread& thread);
  void switch_to(Thread& from, Fiber& to);
  void next_simdgroup(Thread& from);
  void release(Thread& from);
  [[noreturn]] void give_up(const std::string& what);
  Thread& turn_of(SimdGroup& group);
  SimdGroup& simdgroup(unsigned turn);

  Report report_;
  std::optional<std::uint64_t> loose_;
  std::unique_ptr<Stacks> stacks_;
  Random random_;
  unsigned long threadgroup_random_ = 0;
  const Kernel* kernel_ = nullptr;
  void* const* buffers_ = nullptr;
  Place place_{};
  Fiber driver_;
  bool given_up_ = false;

  std::array<Thread, max_threads> threads_;
  std::array<SimdGroup, max_threads / simd_width> groups_;
  unsigned group_count_ = 0;
  // SIMD-groups run in the order (first + i) % count, i = 0, 1, ...
  unsigned first_group_ = 0;
  unsigned group_turn_ = 0;
  unsigned groups_arrived_ = 0;
  unsigned groups_finished_ = 0;
  Site barrier_{};  // of the first SIMD-group that has arrived
  Meeting barrier_meeting_{};
  std::array<unsigned, 2> barriers_{};
  static constexpr std::size_t memory_room = 2 * threadgroup_memory_limit;
  static constexpr unsigned memory_gap = 64;  // behind each array
  unsigned memory_declared_ = 0;              // of the last threadgroup: what has to be poisoned again
  alignas(256) std::array<std::byte, memory_room> memory_;
  std::array<bool, memory_room> declared_{};  // of each byte

  friend void run_thread(Machine& machine);
};

}  // namespace calla::metal::simulation
