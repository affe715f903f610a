#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "metal/simulator/memory.h"
#include "metal/simulator/registry.h"
#include "metal/simulator/simulated_device.h"
#include "metal/simulator/threadgroup.h"

namespace calla::metal::simulation {
namespace {

constexpr std::size_t max_buffers = 31;
constexpr std::size_t max_constants = 4096;  // bytes

class SimulatedBuffer : public Buffer {
 public:
  SimulatedBuffer(std::span<std::byte> bytes, Hazards hazards, Memory* memory)
      : Buffer(bytes), hazards_(hazards), memory_(memory) {}
  ~SimulatedBuffer() override {
    if (memory_ != nullptr) memory_->release(bytes());
  }
  SimulatedBuffer(const SimulatedBuffer&) = delete;
  SimulatedBuffer& operator=(const SimulatedBuffer&) = delete;
  SimulatedBuffer(SimulatedBuffer&&) = delete;
  SimulatedBuffer& operator=(SimulatedBuffer&&) = delete;

  Hazards hazards() const { return hazards_; }

 private:
  Hazards hazards_;
  Memory* memory_;  // that it was taken from, if any
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
  const SimulatedPipeline* pipeline;
  std::vector<void*> buffers;                        // by slot
  std::vector<std::unique_ptr<std::byte[]>> copies;  // of constants
  Grid grid;
};

class Implementation;

class SimulatedPass : public Pass {
 public:
  explicit SimulatedPass(Implementation& device) : device_(&device) {}
  void dispatch(const Pipeline& pipeline, std::span<const Argument> arguments, Grid grid) override;
  void barrier() override { levels_.emplace_back(); }
  void commit() override;
  void wait() override;
  double seconds() const override { return seconds_; }

  void run();
  bool done() const { return done_; }

 private:
  Implementation* device_;
  std::vector<std::vector<Dispatch>> levels_ =
      std::vector<std::vector<Dispatch>>(1);  // what runs between two barriers
  bool committed_ = false;
  bool done_ = false;
  double seconds_ = 0;
};

class Implementation : public SimulatedDevice {
 public:
  explicit Implementation(const Options& options)
      : options_(options),
        random_(options.seed),
        machine_([this](const std::string& what) { found(what); }) {}

  std::string_view name() const override { return "simulated Metal device"; }
  Family family() const override { return options_.tensor_units ? Family::apple10 : Family::apple7; }
  bool has_tensor_units() const override { return options_.tensor_units; }
  std::uint64_t max_buffer() const override { return std::uint64_t{1} << 34; }
  std::uint64_t working_set() const override { return std::uint64_t{1} << 35; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes, Hazards hazards) override {
    return std::make_unique<SimulatedBuffer>(memory_.allocate(bytes), hazards, &memory_);
  }
  std::unique_ptr<Buffer> map(std::span<const std::byte> pages) override {
    if (reinterpret_cast<std::uintptr_t>(pages.data()) % map_alignment() != 0 ||
        pages.size() % map_alignment() != 0) {
      throw Error("map", "Metal maps whole pages only");
    }
    const std::span<std::byte> bytes(const_cast<std::byte*>(pages.data()), pages.size());
    return std::make_unique<SimulatedBuffer>(bytes, Hazards::untracked, nullptr);
  }
  std::size_t map_alignment() const override { return 4096; }

  std::unique_ptr<Pipeline> pipeline(std::string_view kernel, std::uint32_t threads) override {
    if (threads == 0 || threads % simd_width != 0 || threads > max_threads) {
      throw Error(
          kernel,
          fmt::format("threadgroups of {} threads: they have whole SIMD-groups, and {} threads at most",
                      threads, max_threads));
    }
    const Kernel* const found = find_kernel(options_.shape, options_.checked, kernel);
    if (found == nullptr) throw Error(kernel, "there is no such kernel");
    return std::make_unique<SimulatedPipeline>(*found, threads);
  }
  std::unique_ptr<Pass> begin() override { return std::make_unique<SimulatedPass>(*this); }
  void expect_work() override {}

  const std::vector<std::string>& findings() const override { return findings_; }

  void found(const std::string& what) { findings_.push_back(what); }
  /// Takes a pass behind those that wait. A pass runs when it is waited for, or when a third comes.
  void committed(SimulatedPass& pass) {
    queue_.push_back(&pass);
    while (queue_.size() > 2) run_next();
  }
  void run_until(const SimulatedPass& pass) {
    while (!pass.done()) run_next();
  }
  void run(std::vector<Dispatch>& level);

 private:
  void run_next() {
    SimulatedPass* const pass = queue_.front();
    queue_.pop_front();
    pass->run();
  }

  Options options_;
  Random random_;
  Memory memory_;
  Machine machine_;
  std::vector<std::string> findings_;
  std::deque<SimulatedPass*> queue_;
  std::uint64_t dispatches_ = 0;
};

void SimulatedPass::dispatch(const Pipeline& pipeline, std::span<const Argument> arguments, Grid grid) {
  const auto& simulated = dynamic_cast<const SimulatedPipeline&>(pipeline);
  const Kernel& kernel = simulated.kernel();
  if (committed_) throw Error(kernel.name, "the pass is committed");
  if (arguments.size() > max_buffers)
    throw Error(kernel.name, fmt::format("more than {} arguments", max_buffers));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) throw Error(kernel.name, "the grid is empty");
  Dispatch dispatch{&simulated, std::vector<void*>(arguments.size()), {}, grid};
  std::size_t bound = 0;
  for (unsigned i = 0; i < kernel.parameter_count; ++i) {
    const Parameter& parameter = kernel.parameters[i];
    if (parameter.attribute != Attribute::buffer) continue;
    ++bound;
    const auto fail = [&](const std::string& what) {
      throw Error(fmt::format("{}, argument {} ({})", kernel.name, parameter.slot, parameter.name), what);
    };
    if (parameter.slot >= arguments.size()) fail("missing");
    const Argument& argument = arguments[parameter.slot];
    if (parameter.constants != std::holds_alternative<Constants>(argument)) {
      fail(parameter.constants ? "takes constants" : "takes a buffer");
    }
    if (const auto* const constants = std::get_if<Constants>(&argument)) {
      if (constants->bytes.size() > max_constants) fail("more than 4096 bytes of constants");
      if (constants->bytes.size() != parameter.size) {
        fail(fmt::format("{} bytes of constants where the kernel has {}", constants->bytes.size(),
                         parameter.size));
      }
      auto copy = std::make_unique<std::byte[]>(constants->bytes.size());
      std::memcpy(copy.get(), constants->bytes.data(), constants->bytes.size());
      dispatch.buffers[parameter.slot] = copy.get();
      dispatch.copies.push_back(std::move(copy));
    } else {
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
      dispatch.buffers[parameter.slot] = address;
    }
  }
  if (bound != arguments.size()) {
    throw Error(kernel.name, fmt::format("{} arguments where the kernel has {}", arguments.size(), bound));
  }
  levels_.back().push_back(std::move(dispatch));
}

void SimulatedPass::commit() {
  if (committed_) throw Error("pass", "the pass is committed already");
  committed_ = true;
  device_->committed(*this);
}

void SimulatedPass::wait() {
  if (!committed_) throw Error("pass", "the pass is not committed");
  device_->run_until(*this);
}

void SimulatedPass::run() {
  const auto begin = std::chrono::steady_clock::now();
  for (std::vector<Dispatch>& level : levels_) device_->run(level);
  levels_.clear();
  done_ = true;
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Runs what lies between two barriers: dispatch by dispatch, but in any order, and their threadgroups in any
/// order.
void Implementation::run(std::vector<Dispatch>& level) {
  for (std::size_t i = level.size(); i > 1; --i) {
    std::swap(level[i - 1], level[random_.below(static_cast<std::uint32_t>(i))]);
  }
  for (const Dispatch& dispatch : level) {
    const Random random = random_.split(++dispatches_);
    const Grid grid = dispatch.grid;
    std::vector<std::uint32_t> order(std::size_t{grid.x} * grid.y * grid.z);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    Random shuffle = random.split(0);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[shuffle.below(static_cast<std::uint32_t>(i))]);
    }
    for (const std::uint32_t group : order) {
      const Place place{{group % grid.x, group / grid.x % grid.y, group / grid.x / grid.y},
                        {grid.x, grid.y, grid.z},
                        dispatch.pipeline->threads()};
      if (!machine_.run(dispatch.pipeline->kernel(), dispatch.buffers.data(), place, random.split(group + 1)))
        break;
    }
  }
}

}  // namespace

std::unique_ptr<SimulatedDevice> make_device(const Options& options) {
  return std::make_unique<Implementation>(options);
}

}  // namespace calla::metal::simulation
