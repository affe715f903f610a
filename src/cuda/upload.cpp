#include "cuda/upload.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/thread_team.h"
#include "cuda/pack.h"

namespace calla::cuda {
namespace {

// A piece of a matrix on its way. Large enough for the bus's full speed, small enough that two a thread are
// little memory.
constexpr std::size_t piece_bytes = std::size_t{4} << 20;
constexpr int most_threads = 8;
constexpr std::size_t pieces_read_ahead = 16;
constexpr std::size_t progress_step = std::size_t{64} << 20;
constexpr std::size_t alignment = 256;

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }
std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

int in_rows(const Shape& s, int layer) {
  return Shape::is_attention(layer)
             ? 2 * s.attention_dim() + 2 * s.kv_dim()
             : s.convolution_channels() + s.delta_value_dim() + 2 * s.delta_value_heads;
}
int out_columns(const Shape& s, int layer) {
  return Shape::is_attention(layer) ? s.attention_dim() : s.delta_value_dim();
}

/// Gives out device memory from `base`, or, from 0, measures it.
class Layout {
 public:
  explicit Layout(std::uintptr_t base) : base_(base) {}

  std::size_t used() const { return used_; }
  template <class T>
  const T* take(std::size_t count) {
    const std::uintptr_t at = base_ + used_;
    used_ += aligned(count * sizeof(T));
    // NOLINTNEXTLINE(performance-no-int-to-ptr): from 0, while it measures, there is no pointer to add to
    return reinterpret_cast<const T*>(at);
  }
  Tiles tiles(int rows, int columns) {
    return {take<std::byte>(tiled_bytes(rows, columns)), tiles_of_rows(rows) * tile_rows, columns};
  }
  TileStack stack(int experts, int rows, int columns) {
    assert(rows % tile_rows == 0);
    return {take<std::byte>(size(experts) * tiled_bytes(rows, columns)), experts, rows, columns};
  }
  ByteRows byte_rows(int rows, int columns) {
    const auto* const codes = take<std::uint8_t>(size(rows) * size(columns));
    const auto* const scales = take<std::uint32_t>(size(rows) * size(columns / Shape::quantization_group));
    return {codes, scales, rows, columns};
  }

 private:
  std::uintptr_t base_;
  std::size_t used_ = 0;
};

DeviceLayer lay_out_layer(const Shape& s, int index, Layout& layout) {
  DeviceLayer layer;
  layer.input_norm = layout.take<float>(size(s.hidden));
  layer.post_attention_norm = layout.take<float>(size(s.hidden));
  layer.in = layout.tiles(in_rows(s, index), s.hidden);
  layer.out = layout.tiles(s.hidden, out_columns(s, index));
  if (Shape::is_attention(index)) {
    layer.q_norm = layout.take<float>(Shape::attention_head_dim);
    layer.k_norm = layout.take<float>(Shape::attention_head_dim);
  } else {
    layer.convolution = layout.take<float>(size(s.convolution_channels()) * Shape::convolution_taps);
    layer.a_log = layout.take<float>(size(s.delta_value_heads));
    layer.dt_bias = layout.take<float>(size(s.delta_value_heads));
    layer.norm = layout.take<float>(Shape::delta_head_dim);
  }
  layer.router = layout.byte_rows(s.experts + 1, s.hidden);
  layer.router_tiles = layout.tiles(plane_rows(s.experts + 1), s.hidden);
  layer.expert_gate_up = layout.stack(s.experts, 2 * s.expert_hidden, s.hidden);
  layer.expert_down = layout.stack(s.experts, s.hidden, s.expert_hidden);
  layer.shared_gate_up = layout.tiles(2 * s.shared_expert_hidden, s.hidden);
  layer.shared_down = layout.tiles(s.hidden, s.shared_expert_hidden);
  return layer;
}

DeviceWeights lay_out(const Shape& s, Layout& layout) {
  const std::size_t groups = size(s.hidden / Shape::quantization_group);
  DeviceWeights w;
  w.embedding.rows = s.vocabulary;
  w.embedding.columns = s.hidden;
  w.embedding.codes = layout.take<std::uint32_t>(size(s.vocabulary) * size(s.hidden / 8));
  w.embedding.scales = layout.take<std::uint16_t>(size(s.vocabulary) * groups);
  w.embedding.biases = layout.take<std::uint16_t>(size(s.vocabulary) * groups);
  for (int layer = 0; layer < s.layers; ++layer) w.layers.push_back(lay_out_layer(s, layer, layout));
  w.norm = layout.take<float>(size(s.hidden));
  w.head = layout.tiles(s.vocabulary, s.hidden);
  return w;
}

/// Neighbouring rows of a matrix of the checkpoint and the row of the piece where they go: all below each
/// other, or eight and eight with room for as many between.
struct Band {
  AffineMatrix matrix;
  int first = 0;
  int rows = 0;
  int to = 0;
  bool alternating = false;

  std::span<const std::byte> part(std::span<const std::byte> all) const {
    const std::size_t row = all.size() / size(matrix.rows);
    return all.subspan(row * size(first), row * size(rows));
  }
};

/// A pointer of DeviceWeights as a place to write to.
std::byte* writable(const void* data) {
  return static_cast<std::byte*>(const_cast<void*>(data));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

/// Where the rows of a piece go: `codes` alone is tiles; with `scales`, codes as they are and {scale, bias}
/// pairs; with `biases`, too, all as it is.
struct Target {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  std::byte* biases = nullptr;
};

struct Piece {
  std::vector<Band> bands;
  int rows = 0;
  int columns = 0;
  int bits = 0;
  Target target;

  std::size_t word_bytes() const { return size(rows) * size(columns) * size(bits) / 8; }
  std::size_t scale_bytes() const {
    return size(rows) * size(columns / Shape::quantization_group) * sizeof(std::uint16_t);
  }
  std::size_t bytes() const { return word_bytes() + 2 * scale_bytes(); }
  // In a staging buffer: words, scales, biases.
  std::size_t scales_at() const { return aligned(word_bytes()); }
  std::size_t biases_at() const { return scales_at() + aligned(scale_bytes()); }
  std::size_t staged_bytes() const { return biases_at() + aligned(scale_bytes()); }
};

/// The matrices cut into pieces, in the order in which they are to be read.
class Cutter {
 public:
  /// Matrices below each other.
  void stack(std::initializer_list<const AffineMatrix*> matrices, const Target& target) {
    int rows = 0;
    for (const AffineMatrix* matrix : matrices) rows += matrix->rows;
    cut(rows, **matrices.begin(), target, [&](int first, int last, Piece& piece) {
      int start = 0;
      for (const AffineMatrix* matrix : matrices) {
        const int from = std::max(first, start);
        const int to = std::min(last, start + matrix->rows);
        if (from < to) piece.bands.push_back({*matrix, from - start, to - from, from - first, false});
        start += matrix->rows;
      }
    });
  }
  void stack(std::initializer_list<const AffineMatrix*> matrices, const Tiles& tiles) {
    stack(matrices, {.codes = writable(tiles.data)});
  }
  /// Gate and up, or stacks of them: a matrix of an expert is whole tiles, so a stack is cut like one matrix.
  void alternate(const AffineMatrix& gate, const AffineMatrix& up, const std::byte* tiles) {
    assert(gate.rows == up.rows && gate.rows % (tile_rows / 2) == 0);
    cut(2 * gate.rows, gate, {.codes = writable(tiles)}, [&](int first, int last, Piece& piece) {
      const int rows = (last - first) / 2;
      piece.bands.push_back({gate, first / 2, rows, 0, true});
      piece.bands.push_back({up, first / 2, rows, tile_rows / 2, true});
    });
  }

  std::vector<Piece> pieces;

 private:
  template <class Fill>
  void cut(int rows, const AffineMatrix& like, const Target& target, Fill fill) {
    const std::size_t row_words = size(like.words_per_row()) * sizeof(std::uint32_t);
    const std::size_t groups = size(like.groups());
    const std::size_t row_bytes = row_words + 2 * groups * sizeof(std::uint16_t);
    const int step = std::max(
        tile_rows, static_cast<int>((piece_bytes - 2 * alignment) / row_bytes) / tile_rows * tile_rows);
    for (int first = 0; first < rows; first += step) {
      Piece piece;
      piece.rows = std::min(step, rows - first);
      piece.columns = like.columns;
      piece.bits = like.bits;
      piece.target.codes = target.codes;
      const std::size_t start = size(first);
      if (target.scales == nullptr) {
        piece.target.codes += tiled_bytes(first, like.columns);
      } else {
        const bool pairs = target.biases == nullptr;
        piece.target.codes += start * row_words;
        piece.target.scales = target.scales + start * groups * (pairs ? 4 : 2);
        if (!pairs) piece.target.biases = target.biases + start * groups * 2;
      }
      fill(first, first + piece.rows, piece);
      pieces.push_back(std::move(piece));
    }
  }
};

std::vector<Piece> cut(const Weights& weights, const DeviceWeights& device) {
  Cutter cutter;
  cutter.stack({&weights.embedding},
               Target{writable(device.embedding.codes), writable(device.embedding.scales),
                      writable(device.embedding.biases)});
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    const DeviceLayer& to = device.layers[i];
    if (const auto* delta = std::get_if<DeltaNetWeights>(&from.mixer)) {
      cutter.stack({&delta->qkv, &delta->z, &delta->a, &delta->b}, to.in);
      cutter.stack({&delta->out}, to.out);
    } else {
      const auto& attention = std::get<AttentionWeights>(from.mixer);
      cutter.stack({&attention.q, &attention.k, &attention.v}, to.in);
      cutter.stack({&attention.o}, to.out);
    }
    const MoeWeights& moe = from.moe;
    cutter.stack({&moe.router, &moe.shared_gate},
                 Target{.codes = writable(to.router.codes), .scales = writable(to.router.scales)});
    cutter.alternate(moe.gate.all, moe.up.all, to.expert_gate_up.data);
    cutter.stack({&moe.down.all}, Target{.codes = writable(to.expert_down.data)});
    cutter.alternate(moe.shared.gate, moe.shared.up, to.shared_gate_up.data);
    cutter.stack({&moe.shared.down}, to.shared_down);
  }
  cutter.stack({&weights.head}, device.head);
  return std::move(cutter.pieces);
}

void upload_vectors(const Weights& weights, const DeviceWeights& device) {
  const auto copy = [](const float* to, const std::vector<float>& from) {
    upload(writable(to), from.data(), from.size() * sizeof(float));
  };
  copy(device.norm, weights.norm);
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    const DeviceLayer& to = device.layers[i];
    copy(to.input_norm, from.input_norm);
    copy(to.post_attention_norm, from.post_attention_norm);
    if (const auto* delta = std::get_if<DeltaNetWeights>(&from.mixer)) {
      copy(to.convolution, delta->convolution);
      copy(to.a_log, delta->a_log);
      copy(to.dt_bias, delta->dt_bias);
      copy(to.norm, delta->norm);
    } else {
      const auto& attention = std::get<AttentionWeights>(from.mixer);
      copy(to.q_norm, attention.q_norm);
      copy(to.k_norm, attention.k_norm);
    }
  }
}

/// One thread's buffers: it fills one while the other is copied and packed.
class Courier {
 public:
  explicit Courier(const WeightPages* pages) : pages_(pages), stream_(make_stream()) {
    for (Buffer& buffer : buffers_)
      buffer = {PinnedArray<std::byte>(piece_bytes), DeviceArray<std::byte>(piece_bytes), make_event()};
  }

  void read_ahead(const Piece& piece) const {
    each_span(piece, [](const WeightPages& pages, auto bytes) { pages.read_ahead(bytes); });
  }

  void send(const Piece& piece) {
    assert(piece.staged_bytes() <= piece_bytes);
    Buffer& buffer = buffers_[turn_++ % buffers_.size()];
    check(cudaEventSynchronize(buffer.free.get()), "waiting for weights to be packed");
    each_span(piece, [](const WeightPages& pages, auto bytes) { pages.load(bytes); });
    for (const Band& band : piece.bands) gather(band, piece, buffer.host.data());
    each_span(piece, [](const WeightPages& pages, auto bytes) { pages.drop(bytes); });

    const Target& to = piece.target;
    const std::byte* const staged = buffer.host.data();
    std::byte* const device = buffer.device.data();
    const auto* const scales = reinterpret_cast<const std::uint16_t*>(device + piece.scales_at());
    const auto* const biases = reinterpret_cast<const std::uint16_t*>(device + piece.biases_at());
    if (to.biases != nullptr) {
      copy(to.codes, staged, piece.word_bytes());
      copy(to.scales, staged + piece.scales_at(), piece.scale_bytes());
      copy(to.biases, staged + piece.biases_at(), piece.scale_bytes());
    } else if (to.scales != nullptr) {
      copy(to.codes, staged, piece.word_bytes());
      copy(device + piece.scales_at(), staged + piece.scales_at(), piece.staged_bytes() - piece.scales_at());
      launch_pack_pairs(scales, biases, reinterpret_cast<std::uint32_t*>(to.scales),
                        piece.rows * piece.columns / Shape::quantization_group, stream_.get());
    } else {
      copy(device, staged, piece.staged_bytes());
      launch_pack_tiles(
          {reinterpret_cast<const std::uint32_t*>(device), scales, biases, piece.rows, piece.columns},
          to.codes, stream_.get());
    }
    check(cudaEventRecord(buffer.free.get(), stream_.get()), "sending weights to the GPU");
  }

  void finish() { check(cudaStreamSynchronize(stream_.get()), "sending weights to the GPU"); }

 private:
  struct Buffer {
    PinnedArray<std::byte> host;
    DeviceArray<std::byte> device;
    Event free;
  };

  template <class Work>
  void each_span(const Piece& piece, Work work) const {
    if (pages_ == nullptr) return;
    for (const Band& band : piece.bands) {
      for (const auto all : {band.matrix.words, band.matrix.scales, band.matrix.biases})
        work(*pages_, band.part(all));
    }
  }

  /// Copies a band to its rows of the staged piece.
  static void gather(const Band& band, const Piece& piece, std::byte* staged) {
    const auto copy_rows = [&](std::span<const std::byte> all, std::byte* section) {
      const std::span<const std::byte> from = band.part(all);
      const std::size_t row = from.size() / size(band.rows);
      const std::size_t run = band.alternating ? row * (tile_rows / 2) : from.size();
      std::byte* to = section + row * size(band.to);
      for (std::size_t done = 0; done < from.size(); done += run, to += 2 * run)
        std::memcpy(to, from.data() + done, run);
    };
    copy_rows(band.matrix.words, staged);
    copy_rows(band.matrix.scales, staged + piece.scales_at());
    copy_rows(band.matrix.biases, staged + piece.biases_at());
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()),
          "sending weights to the GPU");
  }

  const WeightPages* pages_;
  Stream stream_;
  std::array<Buffer, 2> buffers_;
  std::size_t turn_ = 0;
};

/// Sends all pieces with several threads; reports from the caller's.
void send(const std::vector<Piece>& pieces, const WeightPages* pages, const UploadProgress& progress) {
  std::uint64_t total = 0;
  for (const Piece& piece : pieces) total += piece.bytes();
  int device = 0;
  check(cudaGetDevice(&device), "asking for the GPU in use");

  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t done = 0;
  int working = std::min(usable_cores(), most_threads);
  std::exception_ptr fault;

  const auto work = [&] {
    std::exception_ptr mine;
    try {
      check(cudaSetDevice(device), "choosing the GPU");
      Courier courier(pages);
      for (std::size_t i = next++; i < pieces.size(); i = next++) {
        if (i + pieces_read_ahead < pieces.size()) courier.read_ahead(pieces[i + pieces_read_ahead]);
        courier.send(pieces[i]);
        const std::lock_guard lock(mutex);
        done += pieces[i].bytes();
        changed.notify_one();
      }
      courier.finish();
    } catch (...) {
      mine = std::current_exception();
      next = pieces.size();  // the others stop, too
    }
    const std::lock_guard lock(mutex);
    if (mine != nullptr && fault == nullptr) fault = mine;
    --working;
    changed.notify_one();
  };
  std::vector<std::jthread> threads;
  for (int i = working; i > 0; --i) threads.emplace_back(work);

  std::uint64_t reported = 0;
  for (std::unique_lock lock(mutex);;) {
    changed.wait(lock, [&] { return working == 0 || done >= reported + progress_step; });
    if (working == 0) break;
    reported = done;
    lock.unlock();
    if (progress) progress(reported, total);
    lock.lock();
  }
  if (fault != nullptr) std::rethrow_exception(fault);
  if (progress) progress(total, total);
}

}  // namespace

std::size_t device_bytes(const Shape& shape) {
  Layout layout(0);
  lay_out(shape, layout);
  return layout.used();
}

DeviceWeights upload_weights(const Weights& weights, const Shape& shape, const UploadProgress& progress) {
  Shape whole = shape;
  whole.layers = static_cast<int>(weights.layers.size());
  DeviceArray<std::byte> memory(device_bytes(whole));
  Layout layout(reinterpret_cast<std::uintptr_t>(memory.data()));
  DeviceWeights device = lay_out(whole, layout);
  device.memory = std::move(memory);
  upload_vectors(weights, device);
  send(cut(weights, device), weights.pages.get(), progress);
  const Stream stream = make_stream();
  for (const DeviceLayer& layer : device.layers)
    launch_pack_planes(layer.router, writable(layer.router_tiles.data), stream.get());
  check(cudaStreamSynchronize(stream.get()), "packing the routers");
  return device;
}

}  // namespace calla::cuda
