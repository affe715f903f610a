#include "cpu/weights.h"

#include <array>
#include <cmath>
#include <utility>

namespace calla::cpu {
namespace {

std::size_t size(int extent) { return static_cast<std::size_t>(extent); }

/// The bytes of a stack of panels.
std::size_t bytes_of(int rows, int columns, int bits) {
  return size(panel_count(rows)) * panel_bytes(columns, bits);
}

std::size_t expert_bytes(int hidden, int expert_hidden) {
  return 2 * bytes_of(expert_hidden, hidden, 4) + bytes_of(hidden, expert_hidden, 4);
}

int delta_in_rows(const Shape& s) {
  return s.convolution_channels() + s.delta_value_dim() + 2 * s.delta_value_heads;
}
int attention_in_rows(const Shape& s) { return 2 * s.attention_dim() + 2 * s.kv_dim(); }

/// Fills the arena from its start; one call a matrix, in the order of reading.
class Packer {
 public:
  Packer(Weights& source, Region& arena, ThreadTeam& team, const PackProgress& progress)
      : source_(source), arena_(arena), team_(team), progress_(progress) {
    report();
  }

  /// The rows of several matrices, below each other.
  Panels rows(std::initializer_list<const AffineMatrix*> matrices) {
    const std::span<const AffineMatrix* const> all(matrices.begin(), matrices.size());
    int count = 0;
    for (const AffineMatrix* matrix : all) count += matrix->rows;
    const Panels panels = reserve(panel_count(count), all.front()->columns, all.front()->bits);
    for (const AffineMatrix* matrix : all) load(*matrix);
    fill(panels, [&](int panel, std::byte* out) { pack_panel(all, panel * panel_rows, out); });
    for (const AffineMatrix* matrix : all) drop(*matrix);
    return panels;
  }

  /// One panel of each matrix in turn.
  Panels alternate(const AffineMatrix& first, const AffineMatrix& second) {
    const Panels panels = reserve(2 * panel_count(first.rows), first.columns, first.bits);
    load(first);
    load(second);
    fill(panels, [&](int panel, std::byte* out) {
      pack_panel(panel % 2 == 0 ? first : second, panel / 2 * panel_rows, out);
    });
    drop(first);
    drop(second);
    return panels;
  }

  /// Every expert's first two matrices, then every expert's third.
  std::vector<ExpertPanels> experts(const MoeWeights& moe) {
    // The disk reads on while an expert is packed.
    for (const ExpertStack* stack : {&moe.gate, &moe.up, &moe.down})
      pages(stack->all, [](const WeightPages& source, auto bytes) { source.read_ahead(bytes); });
    std::vector<ExpertPanels> experts(size(moe.gate.experts));
    for (int e = 0; e < moe.gate.experts; ++e)
      experts[size(e)].gate_up = alternate(moe.gate.expert(e), moe.up.expert(e));
    for (int e = 0; e < moe.down.experts; ++e) {
      const AffineMatrix down = moe.down.expert(e);
      experts[size(e)].down = rows({&down});
    }
    return experts;
  }

 private:
  Panels reserve(int count, int columns, int bits) {
    const Panels panels{.data = arena_.data() + used_, .count = count, .columns = columns, .bits = bits};
    used_ += size(count) * panels.stride();
    return panels;
  }

  void fill(const Panels& panels, const std::function<void(int panel, std::byte* out)>& pack_one) {
    team_.run([&](TeamMember& member) {
      const Range mine = member.share(panels.count);
      for (int panel = mine.first; panel < mine.last; ++panel) {
        const std::ptrdiff_t at = panels.panel(panel) - arena_.data();
        pack_one(panel, arena_.data() + at);
      }
    });
    report();
  }

  template <class Work>
  void pages(const AffineMatrix& matrix, Work work) const {
    if (source_.pages == nullptr) return;
    for (const auto bytes : {matrix.words, matrix.scales, matrix.biases}) work(*source_.pages, bytes);
  }
  void load(const AffineMatrix& matrix) const {
    pages(matrix, [](const WeightPages& source, auto bytes) { source.load(bytes); });
  }
  void drop(const AffineMatrix& matrix) const {
    pages(matrix, [](const WeightPages& source, auto bytes) { source.drop(bytes); });
  }

  void report() const {
    if (progress_) progress_(used_, arena_.size());
  }

  Weights& source_;
  Region& arena_;
  ThreadTeam& team_;
  const PackProgress& progress_;
  std::size_t used_ = 0;
};

/// [channels][4] as [4][channels].
std::vector<float> transposed_taps(const std::vector<float>& taps) {
  const std::size_t channels = taps.size() / Shape::convolution_taps;
  std::vector<float> out(taps.size());
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t tap = 0; tap < Shape::convolution_taps; ++tap)
      out[tap * channels + c] = taps[c * Shape::convolution_taps + tap];
  }
  return out;
}

PackedLayer pack_layer(LayerWeights& w, Packer& packer) {
  PackedLayer layer;
  layer.input_norm = std::move(w.input_norm);
  layer.post_attention_norm = std::move(w.post_attention_norm);
  if (auto* delta = std::get_if<DeltaNetWeights>(&w.mixer)) {
    layer.in = packer.rows({&delta->qkv, &delta->z, &delta->a, &delta->b});
    layer.out = packer.rows({&delta->out});
    layer.taps = transposed_taps(delta->convolution);
    for (const float a_log : delta->a_log) layer.decay_rate.push_back(std::exp(a_log));
    layer.dt_bias = std::move(delta->dt_bias);
    layer.norm = std::move(delta->norm);
  } else {
    auto& attention = std::get<AttentionWeights>(w.mixer);
    layer.in = packer.rows({&attention.q, &attention.k, &attention.v});
    layer.out = packer.rows({&attention.o});
    layer.q_norm = std::move(attention.q_norm);
    layer.k_norm = std::move(attention.k_norm);
  }
  layer.router = packer.rows({&w.moe.router, &w.moe.shared_gate});
  layer.shared.gate_up = packer.alternate(w.moe.shared.gate, w.moe.shared.up);
  layer.shared.down = packer.rows({&w.moe.shared.down});
  layer.experts = packer.experts(w.moe);
  return layer;
}

/// The bytes of all panels.
std::size_t packed_bytes(const Shape& s) {
  const std::size_t experts = size(s.experts) * expert_bytes(s.hidden, s.expert_hidden) +
                              expert_bytes(s.hidden, s.shared_expert_hidden) +
                              bytes_of(s.experts + 1, s.hidden, 8);
  const std::size_t delta =
      bytes_of(delta_in_rows(s), s.hidden, 4) + bytes_of(s.hidden, s.delta_value_dim(), 4);
  const std::size_t attention =
      bytes_of(attention_in_rows(s), s.hidden, 4) + bytes_of(s.hidden, s.attention_dim(), 4);
  return size(s.layers) * experts + size(s.delta_layers()) * delta + size(s.attention_layers()) * attention +
         bytes_of(s.vocabulary, s.hidden, 4);
}

}  // namespace

std::uint64_t weight_bytes(const Shape& shape) {
  return packed_bytes(shape) + bytes_of(shape.vocabulary, shape.hidden, 4);
}

PackedWeights pack(Weights weights, const Shape& shape, ThreadTeam& team, const PackProgress& progress) {
  PackedWeights packed;
  packed.embedding = weights.embedding;
  packed.norm = std::move(weights.norm);
  packed.arena = Region(packed_bytes(shape));
  Packer packer(weights, packed.arena, team, progress);
  for (LayerWeights& layer : weights.layers) packed.layers.push_back(pack_layer(layer, packer));
  packed.head = packer.rows({&weights.head});
  packed.owner = std::move(weights.owner);
  return packed;
}

}  // namespace calla::cpu
