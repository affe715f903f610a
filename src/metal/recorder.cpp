#include "metal/recorder.h"

#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

namespace calla::metal {
namespace {

struct Free {
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): from calloc
  void operator()(std::byte* memory) const { std::free(memory); }
};
/// calloc's large blocks are pages that the system hands out when they are touched.
using LazyMemory = std::unique_ptr<std::byte, Free>;

class RecordingBuffer final : public Buffer {
 public:
  RecordingBuffer(LazyMemory memory, std::size_t bytes)
      : Buffer({memory.get(), bytes}), memory_(std::move(memory)) {}

 private:
  LazyMemory memory_;
};

class MappedBuffer final : public Buffer {
 public:
  explicit MappedBuffer(std::span<std::byte> bytes) : Buffer(bytes) {}
};

class RecordingPipeline final : public Pipeline {
 public:
  RecordingPipeline(std::string_view name, std::uint32_t threads) : Pipeline(name, threads) {}
};

class RecordingPass final : public Pass {
 public:
  explicit RecordingPass(std::shared_ptr<std::vector<RecordedPass>> passes) : passes_(std::move(passes)) {}

  void dispatch(const Pipeline& pipeline, std::span<const Argument>, Grid grid) override {
    pass_.dispatches.push_back({std::string(pipeline.name()), grid, pipeline.threads(), pass_.levels});
  }
  void barrier() override { ++pass_.levels; }
  void commit() override {
    if (!pass_.dispatches.empty()) ++pass_.levels;  // so far the barriers were counted
    passes_->push_back(std::move(pass_));
  }
  void wait() override {}
  double seconds() const override { return 0; }

 private:
  RecordedPass pass_;
  std::shared_ptr<std::vector<RecordedPass>> passes_;
};

}  // namespace

std::uint64_t RecordingDevice::max_buffer() const { return std::numeric_limits<std::int64_t>::max(); }

std::unique_ptr<Buffer> RecordingDevice::allocate(std::size_t bytes, Hazards) {
  // NOLINTNEXTLINE(cppcoreguidelines-no-malloc)
  LazyMemory memory(static_cast<std::byte*>(std::calloc(bytes + 1, 1)));
  if (memory == nullptr) throw std::bad_alloc();
  return std::make_unique<RecordingBuffer>(std::move(memory), bytes);
}

std::unique_ptr<Buffer> RecordingDevice::map(std::span<const std::byte> pages) {
  // Kernels do not write what is mapped, and here there are none.
  return std::make_unique<MappedBuffer>(std::span(const_cast<std::byte*>(pages.data()), pages.size()));
}

std::unique_ptr<Pipeline> RecordingDevice::pipeline(std::string_view kernel, std::uint32_t threads) {
  return std::make_unique<RecordingPipeline>(kernel, threads);
}

std::unique_ptr<Pass> RecordingDevice::begin() { return std::make_unique<RecordingPass>(passes_); }

}  // namespace calla::metal
