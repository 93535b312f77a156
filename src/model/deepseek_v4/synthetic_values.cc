#include "model/deepseek_v4/synthetic_values.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "ops/fill_weight/fill_weight.h"

namespace dsv4 {

namespace {

// Marks what is there, before it has an address.
uint8_t* Somewhere() {
  static uint8_t byte;
  return &byte;
}

// Every tensor of `c` with its format and shape.
class Shapes {
 public:
  Shapes(const Config& c, const SyntheticModel& model)
      : c_(c), dense_(model.fp8_dense ? WeightFormat::kFp8Block : WeightFormat::kNvfp4),
        compressor_(model.fp8_dense ? WeightFormat::kBf16 : WeightFormat::kNvfp4) {}

  Weights Make() const {
    Weights w;
    w.embed = Matrix(WeightFormat::kBf16, c_.vocab_size, c_.hidden_size);
    for (int64_t l = 0; l < c_.num_layers; ++l) w.layers.push_back(Layer(l));
    w.hc_head = {Matrix(WeightFormat::kF32, c_.hc_mult, c_.hc_mult * c_.hidden_size), Vector({c_.hc_mult}), Vector({1})};
    w.norm = Vector({c_.hidden_size});
    w.head = Matrix(dense_, c_.vocab_size, c_.hidden_size);
    w.plain_frequencies = Vector({c_.rope_dim / 2});
    w.compress_frequencies = Vector({c_.rope_dim / 2});
    return w;
  }

 private:
  static QuantTensor Matrix(WeightFormat f, int64_t rows, int64_t cols) {
    QuantTensor m{.format = f, .rows = rows, .cols = cols, .codes = Somewhere()};
    if (m.quantised()) m.block_scale = Somewhere();
    if (f == WeightFormat::kFp8Block) m.scale_dtype = DType::kF8E8M0;
    return m;
  }
  static Tensor Vector(Shape shape, DType dtype = DType::kF32) { return {Somewhere(), dtype, shape}; }

  HcWeights Hc() const {
    const int64_t h = c_.hc_mult;
    return {Matrix(WeightFormat::kF32, (2 + h) * h, h * c_.hidden_size), Vector({(2 + h) * h}), Vector({3})};
  }
  CompressorWeights Compressor(int64_t ratio, int64_t dim) const {
    const int64_t width = (ratio == 4 ? 2 : 1) * dim;
    return {Matrix(compressor_, width, c_.hidden_size), Matrix(compressor_, width, c_.hidden_size),
            Vector({ratio, width}), Vector({dim})};
  }
  ExpertWeights Expert(WeightFormat f) const {
    return {Matrix(f, c_.moe_intermediate, c_.hidden_size), Matrix(f, c_.moe_intermediate, c_.hidden_size),
            Matrix(f, c_.hidden_size, c_.moe_intermediate)};
  }
  LayerWeights Layer(int64_t l) const {
    const int64_t d = c_.hidden_size, heads_width = c_.num_heads * c_.head_dim, ratio = c_.compress_ratios[static_cast<size_t>(l)];
    LayerWeights w;
    w.hc_attn = Hc();
    w.attn_norm = Vector({d});
    w.attn.q_a = Matrix(dense_, c_.q_lora_rank, d);
    w.attn.q_a_norm = Vector({c_.q_lora_rank});
    w.attn.q_b = Matrix(dense_, heads_width, c_.q_lora_rank);
    w.attn.kv_proj = Matrix(dense_, c_.head_dim, d);
    w.attn.kv_norm = Vector({c_.head_dim});
    w.attn.sink = Vector({c_.num_heads});
    w.attn.o_a = Matrix(dense_, c_.o_groups * c_.o_lora_rank, heads_width / c_.o_groups);
    w.attn.o_b = Matrix(dense_, d, c_.o_groups * c_.o_lora_rank);
    if (ratio != 0) w.attn.compressor = Compressor(ratio, c_.head_dim);
    if (ratio == 4) {
      w.attn.indexer.q_b = Matrix(dense_, c_.index_heads * c_.index_head_dim, c_.q_lora_rank);
      w.attn.indexer.weights_proj = Matrix(WeightFormat::kBf16, c_.index_heads, d);
      w.attn.indexer.compressor = Compressor(ratio, c_.index_head_dim);
    }
    w.hc_ffn = Hc();
    w.ffn_norm = Vector({d});
    w.moe.router = Matrix(WeightFormat::kBf16, c_.num_experts, d);
    if (c_.is_hash(l)) {
      w.moe.hash_table = Vector({c_.vocab_size, c_.experts_per_token}, DType::kI32);
    } else {
      w.moe.router_bias = Vector({c_.num_experts});
    }
    w.moe.experts.assign(static_cast<size_t>(c_.num_experts), Expert(WeightFormat::kNvfp4));
    w.moe.shared = Expert(dense_);
    return w;
  }

  const Config& c_;
  WeightFormat dense_, compressor_;
};

}  // namespace

Weights SyntheticShapes(const Config& config, const SyntheticModel& model) { return Shapes(config, model).Make(); }

float SyntheticStd(const QuantTensor& m, bool embedding) {
  return embedding ? 1.0f : 1.0f / std::sqrt(static_cast<float>(m.cols));
}

std::vector<float> SyntheticVector(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + 0.1f * FillValue(seed, i);
  return values;
}

std::vector<int32_t> SyntheticHashTable(const Config& c, uint64_t seed) {
  std::vector<int32_t> table;
  table.reserve(static_cast<size_t>(c.vocab_size * c.experts_per_token));
  uint64_t counter = 0;
  for (int64_t v = 0; v < c.vocab_size; ++v) {
    const auto row = static_cast<int64_t>(table.size());
    while (static_cast<int64_t>(table.size()) - row < c.experts_per_token) {
      const auto e = static_cast<int32_t>(RandomBits(seed, counter++) % static_cast<uint64_t>(c.num_experts));
      if (std::find(table.begin() + row, table.end(), e) == table.end()) table.push_back(e);
    }
  }
  return table;
}

}  // namespace dsv4
