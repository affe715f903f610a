#include "metal/simulator/threadgroup.h"

#include <algorithm>
#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>
#include <sys/mman.h>

#include "cpu/denormals.h"
#include "metal/simulator/memory.h"

namespace calla::metal::simulation {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr std::size_t stack_bytes = std::size_t{64} << 10;
constexpr std::size_t guard_bytes = 4096;

std::string describe(Meeting meeting, Site site) {
  const char* what = meeting == Meeting::simd_function         ? "a SIMD function"
                     : meeting == Meeting::simdgroup_barrier   ? "a simdgroup_barrier"
                     : meeting == Meeting::threadgroup_barrier ? "a threadgroup_barrier"
                                                               : "a function of the whole threadgroup";
  return fmt::format("{} at {}:{}", what, site.file, site.line);
}

bool same(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace

/// Stacks of the fibres, with a page between two that must not be touched.
struct Machine::Stacks {
  static constexpr std::size_t stride = stack_bytes + guard_bytes;
  std::byte* base;

  Stacks()
      : base(static_cast<std::byte*>(mmap(nullptr, stride * max_threads, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (base == MAP_FAILED) throw std::bad_alloc();
    for (unsigned i = 0; i < max_threads; ++i) mprotect(base + i * stride, guard_bytes, PROT_NONE);
  }
  ~Stacks() { munmap(base, stride * max_threads); }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  Stacks(Stacks&&) = delete;
  Stacks& operator=(Stacks&&) = delete;

  /// Where a thread's stack begins, growing down. Not all at the same place of a page: they would share cache
  /// sets.
  std::byte* top(unsigned thread) const {
    return base + (thread + 1) * stride - std::size_t{thread % 16} * 256;
  }
};

Machine::Machine(Report report, std::optional<std::uint64_t> loose)
    : report_(std::move(report)), loose_(loose), stacks_(std::make_unique<Stacks>()) {
  memory_declared_ = memory_room;
  for (unsigned i = 0; i < max_threads; ++i) {
    threads_[i].index = i;
    threads_[i].lane = i % simd_width;
    threads_[i].group = &groups_[i / simd_width];
    threads_[i].machine = this;
  }
  for (unsigned i = 0; i < groups_.size(); ++i) groups_[i].index = i;
}

Machine::~Machine() = default;

void run_thread(Machine& machine) {
  Thread& thread = *current;
  machine.kernel_->run(thread, machine.buffers_);
  machine.finish(thread);
}

namespace {
void resumed(transfer_t transfer) { static_cast<Fiber*>(transfer.data)->context = transfer.fctx; }
void enter(transfer_t transfer) {
  resumed(transfer);
  run_thread(*current->machine);
}
}  // namespace

Thread& Machine::turn_of(SimdGroup& group) {
  return threads_[group.index * simd_width + (group.first + group.stride * group.turn) % simd_width];
}

SimdGroup& Machine::simdgroup(unsigned turn) { return groups_[(first_group_ + turn) % group_count_]; }

void Machine::start(SimdGroup& group) {
  group.first = random_.below(simd_width);
  group.stride = random_.next() | 1U;
  group.turn = 0;
  group.arrived = 0;
}

bool Machine::run(const Kernel& kernel, void* const* buffers, const Place& place, Random random) {
  // A fibre has the mode in which it was made.
  std::optional<cpu::FlushDenormals> flush;
  if (loose_) flush.emplace();
  kernel_ = &kernel;
  buffers_ = buffers;
  place_ = place;
  random_ = random;
  threadgroup_random_ = random_.next();
  group_count_ = place.threads / simd_width;
  groups_arrived_ = groups_finished_ = group_turn_ = 0;
  first_group_ = random_.below(group_count_);
  given_up_ = false;
  fill_with_poison(std::span(memory_).first(memory_declared_));
  std::fill_n(declared_.begin(), memory_declared_, false);
  memory_declared_ = 0;
  barriers_ = {};
  for (unsigned i = 0; i < group_count_; ++i) {
    groups_[i].finished = groups_[i].barriers[0] = groups_[i].barriers[1] = 0;
    start(groups_[i]);
  }
  for (unsigned i = 0; i < place.threads; ++i) {
    threads_[i].meetings = threads_[i].memory_used = threads_[i].memory_next = 0;
    threads_[i].context = make_fcontext(stacks_->top(i), stack_bytes - 4096, enter);
  }
  Thread& first = turn_of(simdgroup(0));
  current = &first;
  resumed(jump_fcontext(first.context, &driver_));
  current = nullptr;
  return !given_up_;
}

void Machine::switch_to(Thread& from, Fiber& to) {
  resumed(jump_fcontext(to.context, static_cast<Fiber*>(&from)));
}

void Machine::next_simdgroup(Thread& from) {
  Thread& next = turn_of(simdgroup(++group_turn_));
  current = &next;
  switch_to(from, next);
}

bool Machine::meet(Thread& thread, Meeting meeting, unsigned order, Site site) {
  SimdGroup& group = *thread.group;
  if (group.arrived == 0) {
    if (group.finished > 0) {
      give_up(
          fmt::format("threads of a SIMD-group have ended while others are at {}", describe(meeting, site)));
    }
    group.meeting = meeting;
    group.site = site;
  } else if (meeting != group.meeting || !same(site, group.site)) {
    give_up(fmt::format("threads of a SIMD-group diverge: some are at {}, others at {}",
                        describe(group.meeting, group.site), describe(meeting, site)));
  }
  if (++group.arrived < simd_width) {
    ++group.turn;
    Thread& next = turn_of(group);
    current = &next;
    switch_to(thread, next);
    return false;
  }
  if (meeting < Meeting::threadgroup_barrier) {
    group.barriers[0] += order & 1U;
    group.barriers[1] += order >> 1 & 1U;
    start(group);
    group.first = thread.lane;
    return true;
  }
  if (groups_arrived_ == 0) {
    if (groups_finished_ > 0) {
      give_up(fmt::format("SIMD-groups have ended while others are at {}", describe(meeting, site)));
    }
    barrier_ = site;
    barrier_meeting_ = meeting;
  } else if (meeting != barrier_meeting_ || !same(site, barrier_)) {
    give_up(fmt::format("SIMD-groups of a threadgroup diverge: some are at {}, others at {}",
                        describe(barrier_meeting_, barrier_), describe(meeting, site)));
  }
  if (++groups_arrived_ < group_count_) {
    next_simdgroup(thread);
    return false;
  }
  barriers_[0] += order & 1U;
  barriers_[1] += order >> 1 & 1U;
  release(thread);
  return true;
}

/// All threads have met at a barrier: they go on in a new order.
void Machine::release(Thread& from) {
  groups_arrived_ = group_turn_ = 0;
  first_group_ = random_.below(group_count_);
  for (unsigned i = 0; i < group_count_; ++i) start(groups_[i]);
  Thread& next = turn_of(simdgroup(0));
  if (&next == &from) return;
  current = &next;
  switch_to(from, next);
}

void Machine::finish(Thread& thread) {
  SimdGroup& group = *thread.group;
  if (group.arrived > 0) {
    give_up(fmt::format("threads of a SIMD-group have ended while others are at {}",
                        describe(group.meeting, group.site)));
  }
  if (++group.finished < simd_width) {
    ++group.turn;
    Thread& next = turn_of(group);
    current = &next;
    switch_to(thread, next);
  }
  if (groups_arrived_ > 0) {
    give_up(
        fmt::format("SIMD-groups have ended while others are at {}", describe(barrier_meeting_, barrier_)));
  }
  if (++groups_finished_ < group_count_) next_simdgroup(thread);
  switch_to(thread, driver_);
}

void* Machine::threadgroup_array(Thread& thread, unsigned bytes, unsigned alignment, Site site) {
  const unsigned aligned = std::max(alignment, 16U);
  thread.memory_used = (thread.memory_used + aligned - 1) / aligned * aligned;
  if (bytes > threadgroup_memory_limit || thread.memory_used + bytes > threadgroup_memory_limit) {
    give_up(fmt::format("more than {} bytes of threadgroup memory: {} with the array at {}:{}",
                        threadgroup_memory_limit, std::size_t{thread.memory_used} + bytes, site.file,
                        site.line));
  }
  thread.memory_used += bytes;
  const unsigned begin = (thread.memory_next + aligned - 1) / aligned * aligned;
  thread.memory_next = begin + bytes + memory_gap;
  if (thread.memory_next > memory_room) give_up("too many arrays in threadgroup memory for the simulator");
  if (thread.memory_next > memory_declared_) {
    memory_declared_ = thread.memory_next;
    std::fill_n(declared_.begin() + begin, bytes, true);
  }
  return memory_.data() + begin;
}

std::span<const std::byte> Machine::stacks() const { return {stacks_->base, Stacks::stride * max_threads}; }

void Machine::report(const char* what, unsigned long value, Site site) {
  report_(fmt::format("{} {} {} {}", kernel_->name, what, site.file, site.line),
          fmt::format("{}: {} ({} at {}:{})", whereabouts(), what, value, site.file, site.line));
}

void Machine::give_up(const std::string& what) {
  report_(fmt::format("{} {}", kernel_->name, what), fmt::format("{}: {}", whereabouts(), what));
  give_up();
}

void Machine::give_up() {
  given_up_ = true;
  switch_to(*current, driver_);
  __builtin_unreachable();  // the driver does not come back to a threadgroup that was given up
}

std::string Machine::whereabouts() const {
  return fmt::format("{}, threadgroup ({}, {}, {}), thread {}", kernel_->name, place_.group[0],
                     place_.group[1], place_.group[2], current->index);
}

}  // namespace calla::metal::simulation
