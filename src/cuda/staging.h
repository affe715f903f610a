// Device memory to a stream of bytes, or back.
#pragma once
#include <algorithm>
#include <cstddef>
#include <istream>
#include <ostream>
#include <span>

#include "cuda/device.h"
#include "model/snapshot_stream.h"

namespace calla::cuda {

/// Through a pinned buffer; each call waits until it is done.
class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) {}

  void write(std::ostream& out, const std::byte* from, std::size_t bytes) {
    pieces(bytes, [&](std::size_t at, std::size_t count) {
      check(cudaMemcpyAsync(buffer_.data(), from + at, count, cudaMemcpyDeviceToHost, stream_),
            "saving a snapshot");
      check(cudaStreamSynchronize(stream_), "saving a snapshot");
      write_values(out, std::span<const std::byte>(buffer_.data(), count));
    });
  }
  /// Throws Error when the stream ends before.
  void read(std::istream& in, std::byte* to, std::size_t bytes) {
    pieces(bytes, [&](std::size_t at, std::size_t count) {
      read_values(in, std::span(buffer_.data(), count));
      check(cudaMemcpyAsync(to + at, buffer_.data(), count, cudaMemcpyHostToDevice, stream_),
            "loading a snapshot");
      check(cudaStreamSynchronize(stream_), "loading a snapshot");
    });
  }

 private:
  static constexpr std::size_t piece = std::size_t{4} << 20U;
  template <class Move>
  static void pieces(std::size_t bytes, Move move) {
    for (std::size_t at = 0; at < bytes; at += piece) move(at, std::min(piece, bytes - at));
  }

  cudaStream_t stream_;
  PinnedArray<std::byte> buffer_{piece};
};

}  // namespace calla::cuda
