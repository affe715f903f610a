#include "metal/simulator/watch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <link.h>

#include "metal/simulator/source_line.h"

namespace calla::metal::simulation {
namespace {

/// The addresses of the program's own code and constants.
std::pair<std::uintptr_t, std::uintptr_t> image() {
  std::pair<std::uintptr_t, std::uintptr_t> range{UINTPTR_MAX, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* program, std::size_t, void* result) {
        auto& whole = *static_cast<std::pair<std::uintptr_t, std::uintptr_t>*>(result);
        for (int i = 0; i < program->dlpi_phnum; ++i) {
          const auto& part = program->dlpi_phdr[i];
          if (part.p_type != PT_LOAD) continue;
          whole.first = std::min(whole.first, program->dlpi_addr + part.p_vaddr);
          whole.second = std::max(whole.second, program->dlpi_addr + part.p_vaddr + part.p_memsz);
        }
        return 1;  // the first is the program itself
      },
      &range);
  return range;
}

const char* verb(Watch::Access access) {
  return access.atomic ? "atomically accesses" : access.writes ? "writes" : "reads";
}

}  // namespace

Watch::Watch(Memory& memory, Machine& machine, Report report)
    : memory_(&memory),
      machine_(&machine),
      device_begin_(memory.begin()),
      threadgroup_begin_(reinterpret_cast<std::uintptr_t>(machine.memory().data())),
      report_(std::move(report)),
      threadgroup_cells_(machine.memory().size() / sizeof(poison)) {}

void Watch::begin_pass() {
  if (group_ > max_group / 2) forget();
  before_.clear();
  before_begin_ = level_begin_ = group_ + 1;
}

/// Begins to count threadgroups anew.
void Watch::forget() {
  memory_->clear_cells();
  std::ranges::fill(threadgroup_cells_, Cell{});
  group_ = 0;
}

void Watch::begin_level(std::span<const WatchedDispatch* const> dispatches,
                        std::span<const WatchedDispatch* const> next) {
  for (Region* region : watched_) region->watched = false;
  watched_.clear();
  const auto watch_writes = [&](std::span<const WatchedDispatch* const> level) {
    for (const WatchedDispatch* dispatch : level) {
      for (const Binding& binding : dispatch->bindings) {
        if (!binding.parameter->writes || binding.region->watched) continue;
        binding.region->watched = true;
        watched_.push_back(binding.region);
      }
    }
  };
  watch_writes(before_);
  watch_writes(dispatches);
  watch_writes(next);
  before_.assign(dispatches.begin(), dispatches.end());
  before_begin_ = level_begin_;
  level_begin_ = group_ + 1;
  started_.clear();
  depends_ = false;
}

void Watch::begin_dispatch(const WatchedDispatch& dispatch) {
  dispatch_ = &dispatch;
  ++dispatch_number_;
  started_.push_back({group_ + 1, dispatch.kernel});
  for (const Binding& binding : dispatch.bindings) {
    Region& region = *binding.region;
    if (region.bound_in != dispatch_number_) {
      region.bound_in = dispatch_number_;
      region.bound_at = binding.address;
      region.may_write = false;
    }
    region.bound_at = std::min(region.bound_at, binding.address);
    region.may_write = region.may_write || binding.parameter->writes;
  }
}

void Watch::begin_threadgroup() { ++group_; }

void Watch::activate() {
  active = this;
  stacks_begin_ = reinterpret_cast<std::uintptr_t>(machine_->stacks().data());
  stacks_bytes_ = machine_->stacks().size();
}

void Watch::access(const void* address, std::size_t bytes, Access access, const void* at) {
  this->access(reinterpret_cast<std::uintptr_t>(address), bytes, true, access, at);
}

void Watch::access_range(const void* address, std::size_t bytes, Access access, const void* at) {
  if (bytes > 0) this->access(reinterpret_cast<std::uintptr_t>(address), bytes, false, access, at);
}

void Watch::access(std::uintptr_t address, std::size_t bytes, bool aligned, Access access, const void* at) {
  if (address - device_begin_ < Memory::reserved) {
    device_access(address, bytes, aligned, access, at);
  } else if (address - threadgroup_begin_ < machine_->memory().size()) {
    threadgroup_access(address, bytes, aligned, access, at);
  } else {
    other_access(address, bytes, access, at);
  }
}

void Watch::device_access(std::uintptr_t address, std::size_t bytes, bool aligned, Access access,
                          const void* at) {
  const Region* const region = memory_->region_at(address);
  const std::uintptr_t offset =
      region == nullptr ? 0 : address - reinterpret_cast<std::uintptr_t>(region->begin);
  if (region == nullptr || offset >= region->size || bytes > region->size - offset) {
    give_up("outside",
            fmt::format("{} {} bytes outside all buffers, {}", verb(access), bytes, nearest(address)), at);
  }
  if (region->bound_in != dispatch_number_) {
    give_up(
        "unbound",
        fmt::format("{} {} bytes of a buffer that is no argument, {}", verb(access), bytes, nearest(address)),
        at);
  }
  if (address < reinterpret_cast<std::uintptr_t>(region->bound_at)) {
    give_up("before",
            fmt::format("{} {} bytes before the place in the buffer that is {}", verb(access), bytes,
                        argument(*region)),
            at);
  }
  if (access.writes && !region->may_write) {
    give_up("const", fmt::format("{} {}, which it may only read", verb(access), argument(*region)), at);
  }
  if (aligned && address % bytes != 0) {
    give_up("alignment",
            fmt::format("{} {} bytes of {} at a place that is not a multiple of them", verb(access), bytes,
                        argument(*region)),
            at);
  }
  if (access.reads) check_written(address, bytes, at);
  if (region->watched) {
    words(address, bytes, access, reinterpret_cast<Cell*>(memory_->cells()), device_begin_, false,
          region->may_write, at);
  }
}

void Watch::threadgroup_access(std::uintptr_t address, std::size_t bytes, bool aligned, Access access,
                               const void* at) {
  if (!machine_->is_declared(address - threadgroup_begin_, bytes)) {
    give_up("outside",
            fmt::format("{} {} bytes of threadgroup memory outside all arrays", verb(access), bytes), at);
  }
  if (aligned && address % bytes != 0) {
    give_up("alignment",
            fmt::format("{} {} bytes of threadgroup memory at a place that is not a multiple of them",
                        verb(access), bytes),
            at);
  }
  if (access.reads) check_written(address, bytes, at);
  words(address, bytes, access, threadgroup_cells_.data(), threadgroup_begin_, true, true, at);
}

/// What is no buffer: a mapped one, the program's constants, or the machine's own exchange of values.
void Watch::other_access(std::uintptr_t address, std::size_t bytes, Access access, const void* at) {
  static const std::pair<std::uintptr_t, std::uintptr_t> program = image();
  const auto machine = reinterpret_cast<std::uintptr_t>(machine_);
  if (address - machine < sizeof(Machine)) return;
  if (!access.writes && address >= program.first && address < program.second) return;
  for (const Binding& binding : dispatch_->bindings) {
    const Region& region = *binding.region;
    if (!region.mapped) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(binding.address);
    const auto end = reinterpret_cast<std::uintptr_t>(region.begin) + region.size;
    if (!access.writes && address >= begin && address + bytes <= end) return;
  }
  give_up("outside", fmt::format("{} {} bytes that are in no buffer", verb(access), bytes), at);
}

void Watch::check_written(std::uintptr_t address, std::size_t bytes, const void* at) {
  constexpr std::uintptr_t low_bits = sizeof(poison) - 1;
  for (std::uintptr_t at_word = address & ~low_bits; at_word < address + bytes; at_word += sizeof(poison)) {
    std::uint32_t value = 0;
    std::memcpy(&value, reinterpret_cast<const void*>(at_word), sizeof(value));
    if (value != poison) continue;
    if (!is_new("unwritten", at)) return;
    const Region* const region =
        address - device_begin_ < Memory::reserved ? memory_->region_at(address) : nullptr;
    report("unwritten",
           region == nullptr
               ? std::string("reads threadgroup memory that nothing wrote")
               : fmt::format("reads what nothing wrote, {} bytes into the buffer of {}",
                             address - reinterpret_cast<std::uintptr_t>(region->begin), argument(*region)),
           at);
    return;
  }
}

void Watch::words(std::uintptr_t address, std::size_t bytes, Access access, Cell* cells, std::uintptr_t base,
                  bool threadgroup_memory, bool may_write, const void* at) {
  const std::uintptr_t end = address + bytes;
  while (address < end) {
    const std::uintptr_t within = address % sizeof(poison);
    const std::uintptr_t count = std::min(sizeof(poison) - within, end - address);
    const auto mask = static_cast<unsigned>(((1U << count) - 1) << within);
    word(cells[(address - base) / sizeof(poison)], mask, access, threadgroup_memory, may_write,
         reinterpret_cast<const void*>(address), at);
    address += count;
  }
}

void Watch::word(Cell& cell, unsigned bytes, Access access, bool threadgroup_memory, bool may_write,
                 const void* address, const void* at) {
  const Thread& thread = *current;
  Event now{};
  now.group = group_ & max_group;
  now.barriers = machine_->barriers(threadgroup_memory) & 0x7ffU;
  now.simd_barriers = thread.group->barriers[threadgroup_memory ? 1 : 0] & 0xffU;
  now.thread = thread.index & 0x3ffU;
  now.bytes = bytes & 0xfU;
  now.atomic = access.atomic ? 1 : 0;

  const bool writes = access.writes;
  const auto in_level_before = [&](const Event& event) {
    return !threadgroup_memory && event.group >= before_begin_ && event.group < level_begin_;
  };
  // A read that takes the place of one before the barrier hides it from a write that may follow: assume that
  // it does.
  if (in_level_before(cell.write) || ((writes || may_write) && in_level_before(cell.read))) depends_ = true;

  const char* with = conflict(cell.write, now, threadgroup_memory);
  const bool with_write = with != nullptr;
  if (with == nullptr && writes) with = conflict(cell.read, now, threadgroup_memory);
  if (with != nullptr && is_new(with, at)) {
    const Event& other = with_write ? cell.write : cell.read;
    const char* const other_did = other.atomic != 0 ? "atomically accesses" : with_write ? "writes" : "reads";
    const Region* const region =
        threadgroup_memory ? nullptr : memory_->region_at(reinterpret_cast<std::uintptr_t>(address));
    const std::string what = region == nullptr ? std::string("a word of threadgroup memory")
                                               : fmt::format("a word of {}", argument(*region));
    const Kernel& other_kernel = threadgroup_memory ? *dispatch_->kernel : kernel_of(other.group);
    const std::string who = &other_kernel != dispatch_->kernel ? fmt::format("{}, ", other_kernel.name) : "";
    report(
        with,
        fmt::format("{} {} that {}thread {} of {} {}: {}", verb(access), what, who,
                    static_cast<unsigned>(other.thread),
                    other.group == group_ ? "the same threadgroup" : "another threadgroup", other_did, with),
        at);
  }
  if (writes) {
    cell.write = now;
    return;
  }
  // Remember who read, and that others did.
  const Event& last = cell.read;
  const bool same_words = (last.bytes & now.bytes) != 0;
  if (last.group >= (threadgroup_memory ? group_ : level_begin_) && same_words) {
    if (last.group != now.group) {
      now.other_groups = 1;
    } else {
      now.other_groups = last.other_groups;
      if (last.barriers == now.barriers) {
        const bool same_simd = last.thread / simd_width == now.thread / simd_width;
        now.other_simds = last.other_simds != 0 || !same_simd ? 1 : 0;
        if (same_simd && last.simd_barriers == now.simd_barriers) {
          now.other_lanes = last.other_lanes != 0 || last.thread != now.thread ? 1 : 0;
        }
      }
    }
  }
  cell.read = now;
}

/// What is wrong with an access now after the other, of which one writes; or null.
const char* Watch::conflict(const Event& event, const Event& now, bool threadgroup_memory) const {
  if ((event.bytes & now.bytes) == 0 || (event.atomic != 0 && now.atomic != 0)) return nullptr;
  if (threadgroup_memory ? event.group != group_ : event.group < level_begin_) return nullptr;
  if (event.group < started_.back().group) return "no barrier lies between the two dispatches";
  if (event.group != now.group || event.other_groups != 0) return "threadgroups are not ordered";
  if (event.barriers != now.barriers) return nullptr;
  const bool same_simd = event.thread / simd_width == now.thread / simd_width;
  const bool race =
      event.other_simds != 0 || !same_simd ||
      (event.simd_barriers == now.simd_barriers && (event.thread != now.thread || event.other_lanes != 0));
  return race ? "no barrier for this memory lies between" : nullptr;
}

const Kernel& Watch::kernel_of(std::uint32_t group) const {
  const Kernel* kernel = dispatch_->kernel;
  for (const Started& started : started_) {
    if (started.group <= group) kernel = started.kernel;
  }
  return *kernel;
}

/// The arguments that a region is bound to.
std::string Watch::argument(const Region& region) const {
  std::string names;
  for (const Binding& binding : dispatch_->bindings) {
    if (binding.region != &region) continue;
    names += fmt::format("{}argument {} ({})", names.empty() ? "" : " and ", binding.parameter->slot,
                         binding.parameter->name);
  }
  return names.empty() ? "a buffer that is no argument" : names;
}

std::string Watch::nearest(std::uintptr_t address) const {
  const Region* best = nullptr;
  std::uintptr_t best_distance = UINTPTR_MAX;
  bool behind = true;
  for (const Region& region : memory_->regions()) {
    if (region.size == 0 || region.mapped) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(region.begin);
    const bool after = address >= begin;
    const std::uintptr_t distance = !after                          ? begin - address
                                    : address - begin < region.size ? 0
                                                                    : address - begin - region.size;
    if (distance >= best_distance) continue;
    best = &region;
    best_distance = distance;
    behind = after;
  }
  if (best == nullptr) return "where there is none";
  return fmt::format("{} bytes {} {}", best_distance, behind ? "behind the end of" : "before",
                     argument(*best));
}

/// Whether a kernel's instruction has not done this before: the search for its line takes a moment.
bool Watch::is_new(const char* kind, const void* at) {
  return reported_.emplace(dispatch_->kernel, kind, at).second;
}

void Watch::report(const char* kind, const std::string& what, const void* at) {
  const std::string line = source_line(at);
  report_(fmt::format("{} {} {}", dispatch_->kernel->name, kind, at),
          fmt::format("{}{}: {}", machine_->whereabouts(), line.empty() ? "" : " at " + line, what));
}

void Watch::give_up(const char* kind, const std::string& what, const void* at) {
  report(kind, what, at);
  machine_->give_up();
}

void Watch::fault(const std::string& what, const char* file, unsigned line) {
  report_(fmt::format("{} {} {} {}", dispatch_->kernel->name, what, file, line),
          fmt::format("{} at {}:{}: {}", machine_->whereabouts(), file, line, what));
  machine_->give_up();
}

}  // namespace calla::metal::simulation
