#include "base/thread_team.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

#ifdef __linux__
#include <sched.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace calla {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// About 50 microseconds of pauses. A peer that needs longer is most likely not running at all.
constexpr int spins = 2000;

/// Returns when `value` is no longer `old`.
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_briefly();
  }
  value.wait(old, std::memory_order_acquire);
}

#ifdef __linux__
/// The CPUs' time that the control group may use, in CPUs; infinity where there is no limit.
double cpu_quota() {
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (limit >> quota >> period && quota != "max" && period > 0) return std::stod(quota) / period;
  return INFINITY;
}

/// Threads of one core share its units: two of them together run this kind of work no faster than one.
int physical_cores(const cpu_set_t& allowed) {
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string siblings =
        "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list";
    std::ifstream file(siblings);
    std::string core;
    cores.insert(std::getline(file, core) ? core : std::to_string(cpu));
  }
  return static_cast<int>(cores.size());
}
#endif

}  // namespace

int TeamMember::count() const { return team_.size(); }
void TeamMember::barrier() { team_.barrier(); }

Range TeamMember::share(int total) const {
  const auto bound = [&](int member) {
    return static_cast<int>(static_cast<std::int64_t>(total) * member / team_.size());
  };
  return {bound(index_), bound(index_ + 1)};
}

ThreadTeam::ThreadTeam(int threads) : size_(std::max(threads, 1)) {
  for (int index = 1; index < size_; ++index) threads_.emplace_back([this, index] { serve(index); });
}

ThreadTeam::~ThreadTeam() {
  stopping_ = true;
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::run(const std::function<void(TeamMember&)>& work) {
  work_ = &work;
  if (size_ > 1) {
    runs_.fetch_add(1, std::memory_order_release);
    runs_.notify_all();
  }
  TeamMember self(*this, 0);
  work(self);
  barrier();
}

void ThreadTeam::serve(int index) {
  TeamMember self(*this, index);
  for (std::uint32_t seen = 0;;) {
    wait_while(runs_, seen);
    ++seen;
    if (stopping_) return;
    (*work_)(self);
    barrier();
  }
}

void ThreadTeam::barrier() {
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    wait_while(generation_, generation);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  generation_.store(generation + 1, std::memory_order_release);
  if (size_ > 1) generation_.notify_all();
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    const double quota = std::max(1.0, std::floor(cpu_quota()));
    return static_cast<int>(std::min<double>(std::max(1, physical_cores(allowed)), quota));
  }
#elif defined(__APPLE__)
  int cores = 0;
  std::size_t size = sizeof(cores);
  // The performance cores: a team is as slow as its slowest member.
  if (::sysctlbyname("hw.perflevel0.physicalcpu", &cores, &size, nullptr, 0) == 0 && cores > 0) return cores;
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace calla
