#include "metal/simulator/simulated_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "metal/simulator/memory.h"
#include "metal/simulator/registry.h"
#include "metal/simulator/threadgroup.h"
#include "metal/simulator/watch.h"

namespace calla::metal::simulation {
namespace {

constexpr std::size_t max_buffers = 31;
constexpr std::size_t max_constants = 4096;  // bytes of an argument
constexpr std::size_t constants_alignment = 256;
constexpr std::size_t constants_block = std::size_t{1} << 16;

class SimulatedBuffer : public Buffer {
 public:
  SimulatedBuffer(Region* region, Hazards hazards, Memory& memory)
      : Buffer({region->begin, region->size}), region_(region), hazards_(hazards), memory_(&memory) {}
  ~SimulatedBuffer() override { memory_->release(region_); }
  SimulatedBuffer(const SimulatedBuffer&) = delete;
  SimulatedBuffer& operator=(const SimulatedBuffer&) = delete;
  SimulatedBuffer(SimulatedBuffer&&) = delete;
  SimulatedBuffer& operator=(SimulatedBuffer&&) = delete;

  Region* region() const { return region_; }
  Hazards hazards() const { return hazards_; }

 private:
  Region* region_;
  Hazards hazards_;
  Memory* memory_;
};

class SimulatedPipeline : public Pipeline {
 public:
  SimulatedPipeline(const Kernel& kernel, std::uint32_t threads)
      : Pipeline(kernel.name, threads), kernel_(&kernel) {}
  const Kernel& kernel() const { return *kernel_; }

 private:
  const Kernel* kernel_;
};

struct Dispatch {
  WatchedDispatch watched;
  std::vector<void*> buffers;  // by slot
  Grid grid;
  std::uint32_t threads = 0;  // of a threadgroup
};

using Level = std::vector<Dispatch>;  // what runs between two barriers, in any order

class Implementation;

class SimulatedPass : public Pass {
 public:
  explicit SimulatedPass(Implementation& device) : device_(&device) {}
  ~SimulatedPass() override;
  SimulatedPass(const SimulatedPass&) = delete;
  SimulatedPass& operator=(const SimulatedPass&) = delete;
  SimulatedPass(SimulatedPass&&) = delete;
  SimulatedPass& operator=(SimulatedPass&&) = delete;

  using Pass::dispatch;
  void dispatch(const Pipeline& pipeline, std::span<const Argument> arguments, Grid grid) override;
  void barrier() override { levels_.emplace_back(); }
  void commit() override;
  void wait() override;
  double seconds() const override { return seconds_; }

  void run();
  bool done() const { return done_; }

 private:
  Binding bind(const Kernel& kernel, const Parameter& parameter, const Argument& argument);
  std::byte* copy(std::span<const std::byte> constants);

  Implementation* device_;
  std::vector<Level> levels_ = std::vector<Level>(1);
  std::vector<Region*> blocks_;  // of memory for constants
  std::size_t block_used_ = constants_block;
  bool committed_ = false;
  bool done_ = false;
  double seconds_ = 0;
};

class Implementation : public SimulatedDevice {
 public:
  explicit Implementation(const Options& options)
      : options_(options),
        build_(options.checked ? Build::checked
               : options.loose ? Build::loose
                               : Build::plain),
        random_(options.seed),
        machine_([this](const std::string& key, const std::string& what) { found(key, what); },
                 options.loose),
        watch_(memory_, machine_,
               [this](const std::string& key, const std::string& what) { found(key, what); }) {}

  std::string_view name() const override { return "simulated Metal device"; }
  bool has_tensor_units() const override { return options_.tensor_units; }
  std::uint64_t max_buffer() const override { return std::uint64_t{1} << 33; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes, Hazards hazards) override {
    return std::make_unique<SimulatedBuffer>(memory_.allocate(bytes), hazards, memory_);
  }
  std::unique_ptr<Buffer> map(std::span<const std::byte> pages) override {
    if (reinterpret_cast<std::uintptr_t>(pages.data()) % map_alignment() != 0 ||
        pages.size() % map_alignment() != 0) {
      throw Error("map", "Metal maps whole pages only");
    }
    Region* const region = memory_.map({const_cast<std::byte*>(pages.data()), pages.size()});
    return std::make_unique<SimulatedBuffer>(region, Hazards::untracked, memory_);
  }
  std::size_t map_alignment() const override { return 4096; }

  std::unique_ptr<Pipeline> pipeline(std::string_view kernel, std::uint32_t threads) override {
    if (threads == 0 || threads % simd_width != 0 || threads > max_threads) {
      throw Error(
          kernel,
          fmt::format("threadgroups of {} threads: they have whole SIMD-groups, and {} threads at most",
                      threads, max_threads));
    }
    const Kernel* const found = find_kernel(options_.shape, build_, kernel);
    if (found == nullptr) throw Error(kernel, "there is no such kernel");
    return std::make_unique<SimulatedPipeline>(*found, threads);
  }
  std::unique_ptr<Pass> begin() override { return std::make_unique<SimulatedPass>(*this); }
  void expect_work() override {}

  const std::vector<std::string>& findings() const override { return findings_; }
  const std::vector<std::string>& needless_barriers() const override { return needless_barriers_; }

  /// Takes a pass behind those that wait. A pass runs when it is waited for, or when a third comes.
  void committed(SimulatedPass& pass) {
    queue_.push_back(&pass);
    while (queue_.size() > 2) run_next();
  }
  void run_until(const SimulatedPass& pass) {
    while (!pass.done()) run_next();
  }
  void run(std::vector<Level>& levels);

  Region* take_constants_block() {
    if (free_blocks_.empty()) return memory_.allocate(constants_block);
    Region* const block = free_blocks_.back();
    free_blocks_.pop_back();
    return block;
  }
  void give_constants_block(Region* block) {
    fill_with_poison({block->begin, block->size});
    free_blocks_.push_back(block);
  }

 private:
  void found(const std::string& key, const std::string& what) {
    if (found_.insert(key).second) findings_.push_back(what);
  }
  void run_next() {
    SimulatedPass* const pass = queue_.front();
    queue_.pop_front();
    pass->run();
  }
  bool run(Level& level);
  bool run(const Dispatch& dispatch);
  template <class T>
  static void shuffle(std::vector<T>& values, Random& random) {
    for (std::size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[random.below(static_cast<std::uint32_t>(i))]);
    }
  }

  Options options_;
  Build build_;
  Random random_;
  Memory memory_;
  Machine machine_;
  Watch watch_;
  std::set<std::string> found_;
  std::vector<std::string> findings_;
  std::vector<std::string> needless_barriers_;
  std::deque<SimulatedPass*> queue_;
  std::vector<Region*> free_blocks_;
  std::uint64_t dispatches_ = 0;
};

SimulatedPass::~SimulatedPass() {
  if (committed_) device_->run_until(*this);
  for (Region* block : blocks_) device_->give_constants_block(block);
}

void SimulatedPass::dispatch(const Pipeline& pipeline, std::span<const Argument> arguments, Grid grid) {
  const Kernel& kernel = dynamic_cast<const SimulatedPipeline&>(pipeline).kernel();
  if (committed_) throw Error(kernel.name, "the pass is committed");
  if (arguments.size() > max_buffers)
    throw Error(kernel.name, fmt::format("more than {} arguments", max_buffers));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) throw Error(kernel.name, "the grid is empty");
  Dispatch dispatch{{&kernel, {}}, std::vector<void*>(arguments.size()), grid, pipeline.threads()};
  for (unsigned i = 0; i < kernel.parameter_count; ++i) {
    const Parameter& parameter = kernel.parameters[i];
    if (parameter.attribute != Attribute::buffer) continue;
    if (parameter.slot >= arguments.size()) {
      throw Error(kernel.name, fmt::format("argument {} ({}) is missing", parameter.slot, parameter.name));
    }
    const Binding binding = bind(kernel, parameter, arguments[parameter.slot]);
    dispatch.buffers[parameter.slot] = binding.address;
    dispatch.watched.bindings.push_back(binding);
  }
  if (dispatch.watched.bindings.size() != arguments.size()) {
    throw Error(kernel.name, fmt::format("{} arguments where the kernel has {}", arguments.size(),
                                         dispatch.watched.bindings.size()));
  }
  levels_.back().push_back(std::move(dispatch));
}

Binding SimulatedPass::bind(const Kernel& kernel, const Parameter& parameter, const Argument& argument) {
  const auto fail = [&](const std::string& what) {
    throw Error(fmt::format("{}, argument {} ({})", kernel.name, parameter.slot, parameter.name), what);
  };
  if (const auto* const constants = std::get_if<Constants>(&argument)) {
    if (!parameter.constants) fail("takes a buffer, not constants");
    if (constants->bytes.size() > max_constants)
      fail(fmt::format("more than {} bytes of constants", max_constants));
    if (constants->bytes.size() != parameter.size) {
      fail(fmt::format("{} bytes of constants where the kernel has {}", constants->bytes.size(),
                       parameter.size));
    }
    std::byte* const address = copy(constants->bytes);
    return {blocks_.back(), address, &parameter};
  }
  const View& view = std::get<View>(argument);
  if (view.buffer == nullptr) fail("no buffer");
  const auto& buffer = dynamic_cast<const SimulatedBuffer&>(*view.buffer);
  if (view.offset > buffer.bytes().size()) fail("behind the end of its buffer");
  std::byte* const address = buffer.bytes().data() + view.offset;
  if (reinterpret_cast<std::uintptr_t>(address) % parameter.alignment != 0) {
    fail(fmt::format("the offset {} is not aligned to {} bytes", view.offset, parameter.alignment));
  }
  if (parameter.writes && buffer.hazards() == Hazards::untracked)
    fail("written, but its buffer is untracked");
  return {buffer.region(), address, &parameter};
}

std::byte* SimulatedPass::copy(std::span<const std::byte> constants) {
  if (block_used_ + constants.size() > constants_block) {
    blocks_.push_back(device_->take_constants_block());
    block_used_ = 0;
  }
  std::byte* const address = blocks_.back()->begin + block_used_;
  std::memcpy(address, constants.data(), constants.size());
  // The poison behind them is for who reads more.
  block_used_ += (constants.size() / constants_alignment + 1) * constants_alignment;
  return address;
}

void SimulatedPass::commit() {
  if (committed_) throw Error("pass", "it is committed already");
  committed_ = true;
  device_->committed(*this);
}

void SimulatedPass::wait() {
  if (!committed_) throw Error("pass", "it is not committed");
  device_->run_until(*this);
}

void SimulatedPass::run() {
  const auto begin = std::chrono::steady_clock::now();
  device_->run(levels_);
  levels_.clear();
  done_ = true;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Implementation::run(std::vector<Level>& levels) {
  watch_.activate();
  watch_.begin_pass();
  bool whole = true;  // no dispatch was given up
  std::vector<const WatchedDispatch*> current_level;
  std::vector<const WatchedDispatch*> next_level;
  const auto list = [](const Level& level) {
    std::vector<const WatchedDispatch*> dispatches;
    for (const Dispatch& dispatch : level) dispatches.push_back(&dispatch.watched);
    return dispatches;
  };
  next_level = list(levels.front());
  for (std::size_t i = 0; i < levels.size(); ++i) {
    shuffle(levels[i], random_);
    current_level = list(levels[i]);
    next_level = i + 1 < levels.size() ? list(levels[i + 1]) : std::vector<const WatchedDispatch*>();
    if (options_.checked) watch_.begin_level(current_level, next_level);
    whole = run(levels[i]) && whole;
    if (!options_.checked || i == 0 || !whole || watch_.level_depends()) continue;
    needless_barriers_.push_back(
        fmt::format("barrier {} of a pass, before {}", i,
                    levels[i].empty() ? "nothing" : levels[i].front().watched.kernel->name));
  }
}

bool Implementation::run(Level& level) {
  bool whole = true;
  for (const Dispatch& dispatch : level) whole = run(dispatch) && whole;
  return whole;
}

/// Runs a dispatch's threadgroups in any order. False when one was given up, and those behind it with it.
bool Implementation::run(const Dispatch& dispatch) {
  const Random random = random_.split(++dispatches_);
  const Grid grid = dispatch.grid;
  std::vector<std::uint32_t> order(std::size_t{grid.x} * grid.y * grid.z);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
  Random order_random = random.split(0);
  shuffle(order, order_random);
  if (options_.checked) watch_.begin_dispatch(dispatch.watched);
  return std::ranges::all_of(order, [&](std::uint32_t group) {
    if (options_.checked) watch_.begin_threadgroup();
    const Place place{{group % grid.x, group / grid.x % grid.y, group / grid.x / grid.y},
                      {grid.x, grid.y, grid.z},
                      dispatch.threads};
    return machine_.run(*dispatch.watched.kernel, dispatch.buffers.data(), place, random.split(group + 1));
  });
}

}  // namespace

std::unique_ptr<SimulatedDevice> make_device(const Options& options) {
  if (options.checked && options.loose) throw Error("simulated device", "loose kernels are not watched");
  return std::make_unique<Implementation>(options);
}

}  // namespace calla::metal::simulation
