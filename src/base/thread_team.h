// A fixed number of threads that run one function together, with barriers that cost well under a microsecond.
//
// A forward pass has hundreds of short phases; waking a sleeping thread for each would cost more than the
// work. So the members spin at a barrier for a short while, and sleep only when a peer does not come (the
// machine is busy with something else) or when there is nothing to run.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace calla {

/// The items [first, last).
struct Range {
  int first = 0;
  int last = 0;
  int size() const { return last - first; }
};

class ThreadTeam;

/// One member's view of the team, inside ThreadTeam::run.
class TeamMember {
 public:
  TeamMember(ThreadTeam& team, int index) : team_(team), index_(index) {}

  int index() const { return index_; }
  int count() const;
  /// Waits for all members; what they wrote before it, all may read after it.
  void barrier();
  /// This member's contiguous part of `total` items; the parts differ by one item at most.
  Range share(int total) const;

 private:
  ThreadTeam& team_;
  int index_;
};

class ThreadTeam {
 public:
  /// `threads` members at least one: the caller of run() and threads - 1 of the team's own.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  /// Runs `work` on every member at once, the caller among them, and returns when all have finished. `work`
  /// must not throw. One caller at a time.
  void run(const std::function<void(TeamMember&)>& work);

 private:
  friend class TeamMember;
  void serve(int index);
  void barrier();

  static constexpr std::size_t cache_line = 128;  // two lines: some processors fetch them in pairs

  alignas(cache_line) std::atomic<std::uint32_t> runs_ = 0;  // counts the calls of run(); members wait on it
  alignas(cache_line) std::atomic<int> arrived_ = 0;
  alignas(cache_line) std::atomic<std::uint32_t> generation_ = 0;  // counts the barriers that were passed
  std::atomic<bool> stopping_ = false;
  const int size_;
  const std::function<void(TeamMember&)>* work_ = nullptr;
  std::vector<std::thread> threads_;
};

/// The number of threads worth using: the physical cores that this process may run on, within its CPU quota.
int usable_cores();

}  // namespace calla
