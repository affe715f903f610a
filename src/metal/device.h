// A small C++ face over what the backend needs of Metal: memory that both sides see, compiled kernels, and
// passes, which are command buffers with one concurrent compute encoder. Two implementations: Apple's Metal,
// and a simulator for the tests on any machine.
//
// A device's faults throw Error. One thread at a time may call a device and what it made.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace calla::metal {

/// Who orders accesses to a buffer between passes. Within a pass it is Pass::barrier() alone.
enum class Hazards {
  tracked,    // Metal: a pass begins after all earlier ones that wrote the buffer
  untracked,  // nobody: for what kernels never write
};

/// Memory that the processor and the GPU share. Must outlive the passes that use it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&&) = delete;
  Buffer& operator=(Buffer&&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  /// The buffer as an array. To be touched only while no pass that uses the same elements is under way.
  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 protected:
  explicit Buffer(std::span<std::byte> bytes) : bytes_(bytes) {}

 private:
  std::span<std::byte> bytes_;
};

/// A place in a buffer: what a kernel's pointer is bound to.
struct View {
  const Buffer* buffer = nullptr;
  std::size_t offset = 0;

  View() = default;
  View(const Buffer& whole, std::size_t first = 0) : buffer(&whole), offset(first) {}
  View(const std::unique_ptr<Buffer>& whole, std::size_t first = 0) : View(*whole, first) {}
  View operator+(std::size_t bytes) const { return {*buffer, offset + bytes}; }
};

/// The bytes of a struct of arguments.h, copied when the dispatch is encoded.
struct Constants {
  std::span<const std::byte> bytes;
};
template <class T>
Constants constants(const T& value) {
  return {std::as_bytes(std::span(&value, 1))};
}

/// Argument i of a dispatch is the kernel's [[buffer(i)]].
using Argument = std::variant<View, Constants>;

/// A kernel, compiled for the model's shape.
class Pipeline {
 public:
  virtual ~Pipeline() = default;
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  Pipeline(Pipeline&&) = delete;
  Pipeline& operator=(Pipeline&&) = delete;

  std::string_view name() const { return name_; }
  /// Threads of a threadgroup, a multiple of 32.
  std::uint32_t threads() const { return threads_; }

 protected:
  Pipeline(std::string_view name, std::uint32_t threads) : name_(name), threads_(threads) {}

 private:
  std::string name_;
  std::uint32_t threads_;
};

/// Threadgroups of a dispatch.
struct Grid {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
};

/// A command buffer that is being written. Its dispatches run in any order, or at once, but for the barriers.
class Pass {
 public:
  virtual ~Pass() = default;
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  Pass(Pass&&) = delete;
  Pass& operator=(Pass&&) = delete;

  virtual void dispatch(const Pipeline& pipeline, std::span<const Argument> arguments, Grid grid) = 0;
  void dispatch(const Pipeline& pipeline, std::initializer_list<Argument> arguments, Grid grid) {
    dispatch(pipeline, std::span(arguments.begin(), arguments.size()), grid);
  }
  /// What comes after sees all that came before.
  virtual void barrier() = 0;
  /// Gives the pass to the GPU, behind all that was given to it before.
  virtual void commit() = 0;
  /// Waits until a committed pass is done. Throws DeviceLost when the GPU failed, or does not come to an end;
  /// everything after it is void then.
  virtual void wait() = 0;
  /// How long the GPU worked on it, in seconds; after wait().
  virtual double seconds() const = 0;

 protected:
  Pass() = default;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  Device(Device&&) = delete;
  Device& operator=(Device&&) = delete;

  virtual std::string_view name() const = 0;
  /// Whether there are tensor units for matrix products; self_test.h says whether they are to be used.
  virtual bool has_tensor_units() const = 0;
  /// Bytes that one buffer may have.
  virtual std::uint64_t max_buffer() const = 0;

  /// Of undefined content. Aligned to 256 bytes at least.
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes, Hazards hazards) = 0;
  /// A buffer over memory that is there already, untracked: whole pages of map_alignment() bytes, which
  /// outlive it. Null where the system refuses.
  virtual std::unique_ptr<Buffer> map(std::span<const std::byte> pages) = 0;
  virtual std::size_t map_alignment() const = 0;

  /// The kernel of this name with threadgroups of so many threads.
  virtual std::unique_ptr<Pipeline> pipeline(std::string_view kernel, std::uint32_t threads) = 0;
  virtual std::unique_ptr<Pass> begin() = 0;

  /// To be called when work arrives, before it is prepared: what the GPU has not used for a second is
  /// otherwise slow to come back.
  virtual void expect_work() = 0;

 protected:
  Device() = default;
};

/// Tracked memory of zeros: a row that stands for no slot is computed from whatever is there, and it must be
/// numbers.
inline std::unique_ptr<Buffer> allocate_zeros(Device& device, std::size_t bytes) {
  std::unique_ptr<Buffer> buffer = device.allocate(bytes, Hazards::tracked);
  std::memset(buffer->bytes().data(), 0, buffer->bytes().size());
  return buffer;
}

}  // namespace calla::metal
