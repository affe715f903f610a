// As much of the CUDA runtime as sequences and snapshots use, on the host: device memory is memory, and the
// work of streams waits until somebody synchronises or the next step of some stream happens to be taken, one
// stream being ahead of the others for a while. What is ordered by luck on a GPU goes wrong here. Memory from
// a pool is used again as soon as the order of its stream, or the end of what came before, allows it, and is
// overwritten when it is given back.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

namespace {

/// Whether something has happened yet.
using Mark = std::shared_ptr<bool>;

struct Work {
  std::function<void()> run;
  Mark after = nullptr;  // null: nothing
};

struct Freed {
  char* data;
  std::size_t bytes;
  cudaStream_t stream;
  Mark done;
};

}  // namespace

struct CUstream_st {
  std::deque<Work> work;
};
struct CUevent_st {
  Mark recorded = std::make_shared<bool>(true);
};
struct CUmemPoolHandle_st {
  std::size_t most = ~std::size_t{0};
  std::size_t bytes = 0;
  std::vector<Freed> freed;
};

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

struct Device {
  std::recursive_mutex mutex;
  std::mt19937 random{7};
  std::vector<cudaStream_t> streams;
  std::size_t ahead = 0;                      // the stream that is
  std::map<const char*, std::size_t> pinned;  // bytes
  CUmemPoolHandle_st default_pool;
  cudaMemPool_t pool = &default_pool;
  std::map<char*, std::pair<std::size_t, cudaMemPool_t>> given;  // by pools

  /// The next step of some stream; false where none can go on.
  bool step() {
    if (streams.empty()) return false;
    if (random() % 40 == 0) ahead = random();
    const std::size_t first = (random() % 8 == 0 ? random() : ahead) % streams.size();
    for (std::size_t i = 0; i < streams.size(); ++i) {
      std::deque<Work>& work = streams[(first + i) % streams.size()]->work;
      if (work.empty() || (work.front().after != nullptr && !*work.front().after)) continue;
      const Work next = std::move(work.front());
      work.pop_front();
      next.run();
      return true;
    }
    return false;
  }
  template <class Done>
  void run_until(Done done) {
    while (!done()) {
      if (step()) continue;
      std::fputs("the streams wait for each other\n", stderr);
      std::abort();
    }
  }
  void drain(cudaStream_t stream) {
    run_until([&] { return stream->work.empty(); });
  }
  void push(cudaStream_t stream, std::function<void()> run, Mark after = nullptr) {
    stream->work.push_back({std::move(run), std::move(after)});
    if (random() % 5 != 0) return;
    for (std::size_t steps = random() % 10; steps > 0 && step(); --steps) {
    }
  }
  bool is_pinned(const void* data) const {
    const auto* const at = static_cast<const char*>(data);
    auto found = pinned.upper_bound(at);
    return found != pinned.begin() && at < (--found)->first + found->second;
  }
};

Device& device() {
  static Device one;
  return one;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  const Lock lock(device().mutex);
  *stream = new CUstream_st;
  device().streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(device().mutex);
  device().drain(stream);
  std::erase(device().streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(device().mutex);
  device().drain(stream);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(device().mutex);
  for (cudaStream_t stream : device().streams) device().drain(stream);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(device().mutex);
  const Mark recorded = event->recorded = std::make_shared<bool>(false);
  device().push(stream, [recorded] { *recorded = true; });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(device().mutex);
  device().run_until([recorded = event->recorded] { return *recorded; });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  const Lock lock(device().mutex);
  device().push(
      stream, [] {}, event->recorded);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock(device().mutex);
  if (kind == cudaMemcpyHostToDevice && !device().is_pinned(from)) {
    const auto* const begin = static_cast<const char*>(from);
    device().push(stream, [to, taken = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(to, taken.data(), taken.size());
    });
    return cudaSuccess;
  }
  device().push(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
  if (kind == cudaMemcpyDeviceToHost && !device().is_pinned(to)) device().drain(stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  const Lock lock(device().mutex);
  cudaDeviceSynchronize();
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  const Lock lock(device().mutex);
  device().push(stream, [data, value, bytes] { std::memset(data, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  *data = std::malloc(bytes);
  std::memset(*data, 0xCD, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  cudaDeviceSynchronize();
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, std::size_t bytes, unsigned /*flags*/) {
  const Lock lock(device().mutex);
  device().pinned[static_cast<char*>(data)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  const Lock lock(device().mutex);
  device().pinned.erase(static_cast<char*>(data));
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned /*flags*/) {
  *data = std::malloc(bytes);
  return cudaHostRegister(*data, bytes, 0);
}
cudaError_t cudaFreeHost(void* data) {
  cudaDeviceSynchronize();
  cudaHostUnregister(data);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream) {
  const Lock lock(device().mutex);
  CUmemPoolHandle_st& pool = *device().pool;
  const auto take = [&](char* memory) {
    device().given[memory] = {bytes, &pool};
    *data = memory;
    return cudaSuccess;
  };
  for (auto at = pool.freed.begin(); at != pool.freed.end(); ++at) {
    if (at->bytes != bytes || (at->stream != stream && !*at->done)) continue;
    char* const memory = at->data;
    pool.freed.erase(at);
    return take(memory);
  }
  std::erase_if(pool.freed, [&](const Freed& freed) {
    if (pool.bytes + bytes <= pool.most || !*freed.done) return false;
    pool.bytes -= freed.bytes;
    std::free(freed.data);
    return true;
  });
  if (pool.bytes + bytes > pool.most) return cudaErrorMemoryAllocation;
  pool.bytes += bytes;
  return take(static_cast<char*>(std::malloc(bytes)));
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  const Lock lock(device().mutex);
  const auto given = device().given.find(static_cast<char*>(data));
  if (given == device().given.end()) return cudaErrorInvalidValue;
  const auto [bytes, pool] = given->second;
  device().given.erase(given);
  const Mark done = std::make_shared<bool>(false);
  pool->freed.push_back({static_cast<char*>(data), bytes, stream, done});
  device().push(stream, [data, size = bytes, done] {
    std::memset(data, 0xDD, size);
    *done = true;
  });
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  *pool = new CUmemPoolHandle_st;
  (*pool)->most = properties->maxSize;
  return cudaSuccess;
}
// What was taken from it may outlive it.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t /*pool*/) { return cudaSuccess; }
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int /*device*/) {
  *pool = device().pool;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int /*device*/) {
  *pool = &device().default_pool;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetMemPool(int /*device*/, cudaMemPool_t pool) {
  const Lock lock(device().mutex);
  device().pool = pool;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t /*pool*/, cudaMemPoolAttr /*attribute*/, void* /*value*/) {
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t /*status*/) { return "a fault"; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) {
  *index = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int /*device*/) {
  *value = 0;
  return cudaSuccess;
}

}  // extern "C"
