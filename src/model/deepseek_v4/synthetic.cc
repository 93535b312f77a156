#include "model/deepseek_v4/synthetic.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/str.h"
#include "model/deepseek_v4/rope.h"
#include "model/deepseek_v4/visit_weights.h"
#include "model/deepseek_v4/weight_arena.h"
#include "ops/fill_weight/fill_weight.h"
#include "ops/pack_weight/pack_weight.h"

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

// Distinct experts for every token id.
std::vector<int32_t> HashTable(const Config& c, uint64_t seed) {
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

}  // namespace

Result<Config> SyntheticConfig(const SyntheticModel& model) {
  Config c;
  c.vocab_size = 129280;
  c.head_dim = 512;
  c.rope_dim = 64;
  c.o_lora_rank = 1024;
  c.window = 128;
  c.num_shared_experts = 1;
  c.experts_per_token = 6;
  c.num_hash_layers = 3;
  c.swiglu_limit = 10;
  c.index_heads = 64;
  c.index_head_dim = 128;
  c.hc_mult = 4;
  c.hc_sinkhorn_iters = 20;
  c.hc_eps = 1e-6f;
  c.rms_norm_eps = 1e-6f;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.yarn_factor = 16;
  c.yarn_original_positions = 65536;
  c.yarn_beta_fast = 32;
  c.yarn_beta_slow = 1;
  c.max_positions = 1048576;
  c.bos_token_id = 0;
  c.eos_token_ids = {1};
  int64_t layers = 0, pairs = 0;
  if (model.shape == "flash") {
    c.hidden_size = 4096;
    c.num_heads = 64;
    c.q_lora_rank = 1024;
    c.o_groups = 8;
    c.moe_intermediate = 2048;
    c.num_experts = 256;
    c.routed_scaling_factor = 1.5f;
    c.index_topk = 512;
    c.compress_ratios = {0, 0};
    layers = 43, pairs = 20;
  } else if (model.shape == "pro") {
    c.hidden_size = 7168;
    c.num_heads = 128;
    c.q_lora_rank = 1536;
    c.o_groups = 16;
    c.moe_intermediate = 3072;
    c.num_experts = 384;
    c.routed_scaling_factor = 2.5f;
    c.index_topk = 1024;
    c.compress_ratios = {128, 128};
    layers = 61, pairs = 29;
  } else if (model.shape == "nano") {
    c.vocab_size = 4096;
    c.hidden_size = 256;
    c.num_heads = 4;
    c.q_lora_rank = 128;
    c.o_groups = 2;
    c.o_lora_rank = 128;
    c.moe_intermediate = 256;
    c.num_experts = 16;
    c.experts_per_token = 3;
    c.num_hash_layers = 1;
    c.routed_scaling_factor = 1.5f;
    c.index_heads = 4;
    c.index_topk = 64;
    c.max_positions = 131072;
    c.compress_ratios = {0};
    layers = 6, pairs = 2;
  } else {
    return InvalidArgument(StrCat("no synthetic model '", model.shape, "'; use flash, pro or nano"));
  }
  for (int64_t i = 0; i < pairs; ++i) c.compress_ratios.insert(c.compress_ratios.end(), {4, 128});
  c.compress_ratios.push_back(4);
  if (model.num_layers < 0 || model.num_layers > layers) {
    return InvalidArgument(StrCat("synthetic ", model.shape, " with ", model.num_layers, " layers: it has ", layers,
                                  "; use 1 to ", layers, ", or 0 for all"));
  }
  c.num_layers = model.num_layers > 0 ? model.num_layers : layers;
  c.compress_ratios.resize(static_cast<size_t>(c.num_layers));
  c.num_hash_layers = std::min(c.num_hash_layers, c.num_layers);
  return c;
}

Result<Weights> SyntheticWeights(Device& device, ThreadPool& pool, const Config& config, const SyntheticModel& model,
                                 const std::function<bool(int64_t, int64_t)>& progress) {
  Weights w = Shapes(config, model).Make();
  const bool pack = device.kind() != DeviceKind::kCpu;
  const auto packs = [&](const QuantTensor& m, bool keep_rows) { return pack && !keep_rows && m.format != WeightFormat::kF32; };
  int64_t total = 0, staging_bytes = 0;
  VisitWeights(
      w,
      [&](const QuantTensor& m, bool keep_rows) {
        if (!m) return;
        const int64_t rows_bytes = AlignedBytes(m.rows * m.row_bytes()) + AlignedBytes(FileScaleBytes(m));
        if (packs(m, keep_rows)) staging_bytes = std::max(staging_bytes, rows_bytes);
        total += packs(m, keep_rows) ? AlignedBytes(PackedCodeBytes(m)) + AlignedBytes(PackedScaleBytes(m)) : rows_bytes;
      },
      [&](const Tensor& t) { total += t ? AlignedBytes(t.num_bytes()) : 0; });
  for (const LayerWeights& layer : w.layers) {
    total += AlignedBytes(ExpertTableBytes(layer.moe));
  }

  auto arena = std::make_shared<WeightArena>();
  DeviceBuffer staging;
  if (!arena->Allocate(device, total) || !staging.Allocate(device, staging_bytes)) {
    return ResourceExhausted(StrCat("synthetic weights take ", total + staging_bytes, " bytes of memory on ", device.name(),
                                    "; use fewer layers (--layers)"));
  }
  const ExecContext ctx = device.Context(&pool, false);
  uint64_t number = 0;
  bool stopped = false;
  const auto finished_one = [&] {
    if (++number % 256 == 0 && progress && !progress(arena->taken(), total)) stopped = true;
  };
  VisitWeights(
      w,
      [&](QuantTensor& m, bool keep_rows) {
        if (!m || stopped) return;
        const int64_t code_bytes = m.rows * m.row_bytes(), scale_bytes = FileScaleBytes(m);
        uint8_t *codes, *scales;
        if (packs(m, keep_rows)) {
          codes = staging.data();
          scales = staging.data() + AlignedBytes(code_bytes);
        } else {
          codes = arena->Take(code_bytes);
          scales = arena->Take(scale_bytes);
        }
        const bool embedding = m.rows == config.vocab_size && keep_rows;
        const float std = embedding ? 1.0f : 1.0f / std::sqrt(static_cast<float>(m.cols));
        m.codes = codes;
        m.block_scale = scale_bytes > 0 ? scales : nullptr;
        m.global_scale = m.format == WeightFormat::kNvfp4 ? FillGlobalScale(std) : 1.0f;
        FillWeight(ctx, {.w = m, .codes = codes, .block_scale = scale_bytes > 0 ? scales : nullptr,
                         .seed = RandomBits(model.seed, number), .std = std});
        if (packs(m, keep_rows)) {
          const PackWeightArgs args{.w = m, .codes = arena->Take(PackedCodeBytes(m)),
                                    .block_scale = PackedScaleBytes(m) > 0 ? arena->Take(PackedScaleBytes(m)) : nullptr};
          PackWeight(ctx, args);
          m = PackedView(args);
        }
        finished_one();
      },
      [&](Tensor& t) {
        if (!t || stopped) return;
        uint8_t* data = arena->Take(t.num_bytes());
        const uint64_t seed = RandomBits(model.seed, number);
        if (t.dtype == DType::kI32) {
          const std::vector<int32_t> table = HashTable(config, seed);
          device.Upload(data, table.data(), t.num_bytes());
          (void)device.Synchronize();
        } else {
          std::vector<float> values(static_cast<size_t>(t.num_elements()));
          // About 1: right for norms and gains, harmless for biases and sinks.
          for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f + 0.1f * FillValue(seed, i);
          if (&t == &w.plain_frequencies) values = PlainRopeFrequencies(config);
          if (&t == &w.compress_frequencies) values = CompressRopeFrequencies(config);
          device.Upload(data, values.data(), t.num_bytes());
          (void)device.Synchronize();
        }
        t.data = data;
        finished_one();
      });
  if (stopped) return Cancelled("making the synthetic weights was cancelled");
  for (LayerWeights& layer : w.layers) {
    if (!pack) continue;
    const int64_t n = ExpertTableBytes(layer.moe);
    uint8_t* table = arena->Take(n);
    device.Upload(table, layer.moe.experts.data(), n);
    layer.moe.table = reinterpret_cast<const ExpertWeights*>(table);
  }
  DSV4_RETURN_IF_ERROR(device.Synchronize());
  w.storage = std::move(arena);
  return w;
}

}  // namespace dsv4
