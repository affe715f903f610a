#include "metal/weights.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "base/thread_team.h"
#include "metal/stretches.h"

namespace calla::metal {
namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t piece_bytes = std::size_t{16} << 20;  // what a thread brings in at a time
constexpr int most_threads = 8;

std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }
std::uintptr_t address(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }

/// Where bytes of the checkpoint have gone.
struct Placed {
  std::span<const std::byte> bytes;
  View view;
};

/// A piece of a tensor on its way from the file: into `to`, or where it is when that is null.
struct Piece {
  std::span<const std::byte> from;
  std::byte* to = nullptr;
};

class Placer {
 public:
  Placer(Device& device, const Weights& weights) : device_(device), pages_(weights.pages.get()) {
    for (const Stretch& stretch : find_stretches(weights, device.max_buffer())) {
      if (!stretch.aligned || !map(stretch)) copy(stretch);
    }
    std::sort(placed_.begin(), placed_.end(), [](const Placed& a, const Placed& b) {
      return address(a.bytes.data()) < address(b.bytes.data());
    });
  }

  /// Brings the pieces in with several threads: faults that the GPU takes cost far more than those of a
  /// processor.
  void bring_in(const LoadProgress& progress) {
    std::atomic<std::size_t> next = 0;
    std::atomic<std::uint64_t> done = 0;
    std::exception_ptr fault;
    std::mutex fault_mutex;
    const std::uint64_t total = mapped_ + copied_;
    if (progress) progress(0, total);
    ThreadTeam team(std::min(most_threads, usable_cores()));
    team.run([&](TeamMember& member) {
      for (std::size_t i = next++; i < pieces_.size(); i = next++) {
        const Piece& piece = pieces_[i];
        try {
          if (pages_ != nullptr) pages_->load(piece.from);
        } catch (...) {
          const std::lock_guard lock(fault_mutex);
          fault = std::current_exception();
          next = pieces_.size();
          return;
        }
        if (piece.to != nullptr) {
          std::memcpy(piece.to, piece.from.data(), piece.from.size());
          if (pages_ != nullptr) pages_->drop(piece.from);
        }
        done += piece.from.size();
        if (progress && member.index() == 0) progress(done, total);
      }
    });
    if (fault) std::rethrow_exception(fault);
    if (progress) progress(total, total);
  }

  MatrixView matrix(const AffineMatrix& m) const {
    return {view(m.words), view(m.scales), view(m.biases), m.rows};
  }

  void finish(DeviceWeights& out, const Weights& weights) {
    out.mapped = mapped_;
    out.copied = copied_;
    if (mapped_ > 0) out.owner = weights.owner;
    for (auto& buffer : buffers_) out.buffers.push_back(std::move(buffer));
  }

 private:
  bool map(const Stretch& stretch) {
    const std::uintptr_t page = device_.map_alignment();
    const std::uintptr_t before = address(stretch.bytes.data()) % page;
    const std::size_t bytes = (before + stretch.bytes.size() + page - 1) / page * page;
    if (bytes > device_.max_buffer()) return false;
    std::unique_ptr<Buffer> buffer = device_.map({stretch.bytes.data() - before, bytes});
    if (buffer == nullptr) return false;
    for (const auto part : stretch.parts) {
      placed_.push_back(
          {part, {*buffer, before + static_cast<std::size_t>(part.data() - stretch.bytes.data())}});
      add_pieces(part, nullptr);
    }
    mapped_ += stretch.bytes.size();
    buffers_.push_back(std::move(buffer));
    return true;
  }

  void copy(const Stretch& stretch) {
    std::size_t bytes = 0;
    for (const auto part : stretch.parts) bytes += aligned(part.size());
    std::unique_ptr<Buffer> buffer = device_.allocate(bytes, Hazards::untracked);
    std::size_t at = 0;
    for (const auto part : stretch.parts) {
      placed_.push_back({part, {*buffer, at}});
      add_pieces(part, buffer->bytes().data() + at);
      at += aligned(part.size());
      copied_ += part.size();
    }
    buffers_.push_back(std::move(buffer));
  }

  void add_pieces(std::span<const std::byte> from, std::byte* to) {
    for (std::size_t at = 0; at < from.size(); at += piece_bytes) {
      const auto piece = from.subspan(at, std::min(piece_bytes, from.size() - at));
      pieces_.push_back({piece, to == nullptr ? nullptr : to + at});
    }
  }

  View view(std::span<const std::byte> bytes) const {
    const auto at = std::lower_bound(placed_.begin(), placed_.end(), bytes,
                                     [](const Placed& p, std::span<const std::byte> b) {
                                       return address(p.bytes.data()) < address(b.data());
                                     });
    assert(at != placed_.end() && at->bytes.data() == bytes.data());
    return at->view;
  }

  Device& device_;
  const WeightPages* pages_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Placed> placed_;
  std::vector<Piece> pieces_;
  std::uint64_t mapped_ = 0;
  std::uint64_t copied_ = 0;
};

/// The small float vectors, one behind the other in one buffer.
class Vectors {
 public:
  void add(const std::vector<float>& values, View& target) {
    targets_.push_back({&values, &target, used_});
    used_ += aligned(values.size() * sizeof(float));
  }

  void place(Device& device, DeviceWeights& out) {
    std::unique_ptr<Buffer> buffer = device.allocate(used_, Hazards::untracked);
    for (const Target& t : targets_) {
      std::memcpy(buffer->bytes().data() + t.at, t.values->data(), t.values->size() * sizeof(float));
      *t.view = {*buffer, t.at};
      out.copied += t.values->size() * sizeof(float);
    }
    out.buffers.push_back(std::move(buffer));
  }

 private:
  struct Target {
    const std::vector<float>* values;
    View* view;
    std::size_t at;
  };
  std::vector<Target> targets_;
  std::size_t used_ = 0;
};

void place_mixer(const DeltaNetWeights& w, const Placer& placer, Vectors& vectors, LayerViews& out) {
  out.project = {placer.matrix(w.qkv), placer.matrix(w.z), placer.matrix(w.b), placer.matrix(w.a)};
  out.out = placer.matrix(w.out);
  vectors.add(w.convolution, out.convolution);
  vectors.add(w.a_log, out.a_log);
  vectors.add(w.dt_bias, out.dt_bias);
  vectors.add(w.norm, out.norm);
}

void place_mixer(const AttentionWeights& w, const Placer& placer, Vectors& vectors, LayerViews& out) {
  const MatrixView v = placer.matrix(w.v);
  out.project = {placer.matrix(w.q), placer.matrix(w.k), v, MatrixView{v.words, v.scales, v.biases, 0}};
  out.out = placer.matrix(w.o);
  vectors.add(w.q_norm, out.q_norm);
  vectors.add(w.k_norm, out.k_norm);
}

}  // namespace

DeviceWeights place_weights(Device& device, const Weights& weights, const LoadProgress& progress) {
  Placer placer(device, weights);
  placer.bring_in(progress);

  DeviceWeights out;
  Vectors vectors;
  out.embedding = placer.matrix(weights.embedding);
  out.head = placer.matrix(weights.head);
  vectors.add(weights.norm, out.norm);
  out.layers.resize(weights.layers.size());  // not moved any more: `vectors` points into it
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    LayerViews& layer = out.layers[i];
    vectors.add(from.input_norm, layer.input_norm);
    vectors.add(from.post_attention_norm, layer.post_attention_norm);
    std::visit([&](const auto& mixer) { place_mixer(mixer, placer, vectors, layer); }, from.mixer);
    const MoeWeights& moe = from.moe;
    layer.router = placer.matrix(moe.router);
    layer.shared_gate = placer.matrix(moe.shared_gate);
    layer.gate = placer.matrix(moe.gate.all);
    layer.up = placer.matrix(moe.up.all);
    layer.down = placer.matrix(moe.down.all);
    layer.shared_expert_gate = placer.matrix(moe.shared.gate);
    layer.shared_expert_up = placer.matrix(moe.shared.up);
    layer.shared_expert_down = placer.matrix(moe.shared.down);
  }
  placer.finish(out, weights);
  vectors.place(device, out);
  return out;
}

}  // namespace calla::metal
