#include "model/deepseek_v4/synthetic.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/str.h"
#include "model/deepseek_v4/rope.h"
#include "model/deepseek_v4/synthetic_values.h"
#include "model/deepseek_v4/visit_weights.h"
#include "model/deepseek_v4/weight_arena.h"
#include "ops/fill_weight/fill_weight.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {

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

namespace {

bool Packs(const Device& device, const QuantTensor& m, bool keep_rows) {
  return device.kind() != DeviceKind::kCpu && !keep_rows && m.format != WeightFormat::kF32;
}

struct DeviceSizes {
  int64_t total = 0;    // of the weights
  int64_t staging = 0;  // of the largest matrix, before it is packed
};

DeviceSizes MeasureSizes(const Device& device, const Weights& w) {
  DeviceSizes sizes;
  VisitWeights(
      w,
      [&](const QuantTensor& m, bool keep_rows) {
        if (!m) return;
        const int64_t rows_bytes = AlignedBytes(m.rows * m.row_bytes()) + AlignedBytes(FileScaleBytes(m));
        const bool packs = Packs(device, m, keep_rows);
        if (packs) sizes.staging = std::max(sizes.staging, rows_bytes);
        sizes.total += packs ? AlignedBytes(PackedCodeBytes(m)) + AlignedBytes(PackedScaleBytes(m)) : rows_bytes;
      },
      [&](const Tensor& t) { sizes.total += t ? AlignedBytes(t.num_bytes()) : 0; });
  for (const LayerWeights& layer : w.layers) sizes.total += AlignedBytes(ExpertTableBytes(layer.moe));
  return sizes;
}

}  // namespace

int64_t SyntheticWeightBytes(const Device& device, const Config& config, const SyntheticModel& model) {
  const DeviceSizes sizes = MeasureSizes(device, SyntheticShapes(config, model));
  return sizes.total + sizes.staging;
}

Result<Weights> SyntheticWeights(Device& device, ThreadPool& pool, const Config& config, const SyntheticModel& model,
                                 const std::function<bool(int64_t, int64_t)>& progress) {
  Weights w = SyntheticShapes(config, model);
  const bool pack = device.kind() != DeviceKind::kCpu;
  const auto packs = [&](const QuantTensor& m, bool keep_rows) { return Packs(device, m, keep_rows); };
  const DeviceSizes sizes = MeasureSizes(device, w);
  const int64_t total = sizes.total, staging_bytes = sizes.staging;

  auto arena = std::make_shared<WeightArena>();
  DeviceBuffer staging;
  if (!arena->Allocate(device, total) || !staging.Allocate(device, staging_bytes)) {
    return ResourceExhausted(StrCat("synthetic weights take ", total + staging_bytes, " bytes of memory on ",
                                    device.name(), "; use fewer layers (--layers)"));
  }
  const ExecContext ctx = device.Context(&pool, false);
  uint64_t number = 0;
  bool stopped = false;
  const auto finished_one = [&] {
    if (++number % 256 == 0 && progress && !progress(arena->taken(), total)) stopped = true;
  };
  VisitNamedWeights(
      w,
      [&](const WeightRef& ref, QuantTensor& m) {
        if (!m || stopped) return;
        const bool keep_rows = KeepsRows(ref.row->kind);
        const int64_t code_bytes = m.rows * m.row_bytes(), scale_bytes = FileScaleBytes(m);
        uint8_t *codes, *scales;
        if (packs(m, keep_rows)) {
          codes = staging.data();
          scales = staging.data() + AlignedBytes(code_bytes);
        } else {
          codes = arena->Take(code_bytes);
          scales = arena->Take(scale_bytes);
        }
        const float std = SyntheticStd(m, ref.row->kind);
        m.codes = codes;
        m.block_scale = scale_bytes > 0 ? scales : nullptr;
        m.global_scale = InfoOf(m.format).global_scale ? FillGlobalScale(std) : 1.0f;
        FillWeight(ctx, {.w = m, .codes = codes, .block_scale = scale_bytes > 0 ? scales : nullptr,
                         .seed = RandomBits(model.seed, number), .std = std});
        if (packs(m, keep_rows)) {
          const PackWeightArgs args{
              .w = m,
              .codes = arena->Take(PackedCodeBytes(m)),
              .block_scale = PackedScaleBytes(m) > 0 ? arena->Take(PackedScaleBytes(m)) : nullptr};
          PackWeight(ctx, args);
          m = PackedView(args);
        }
        finished_one();
      },
      [&](const WeightRef&, Tensor& t) {
        if (!t || stopped) return;
        uint8_t* data = arena->Take(t.num_bytes());
        const uint64_t seed = RandomBits(model.seed, number);
        if (t.dtype == DType::kI32) {
          device.Upload(data, SyntheticHashTable(config, seed).data(), t.num_bytes());
        } else {
          std::vector<float> values = SyntheticVector(t.num_elements(), seed);
          if (&t == &w.plain_frequencies) values = PlainRopeFrequencies(config);
          if (&t == &w.compress_frequencies) values = CompressRopeFrequencies(config);
          device.Upload(data, values.data(), t.num_bytes());
        }
        t.data = data;
        finished_one();
      });
  if (stopped) return Cancelled("making the synthetic weights was cancelled");
  for (LayerWeights& layer : w.layers) {
    if (!pack) continue;
    const int64_t n = ExpertTableBytes(layer.moe);
    uint8_t* table = arena->Take(n);
    device.Upload(table, ExpertTable(layer.moe).data(), n);
    layer.moe.table = reinterpret_cast<const ExpertWeights*>(table);
  }
  DSV4_RETURN_IF_ERROR(device.Synchronize());
  w.storage = std::move(arena);
  return w;
}

}  // namespace dsv4::deepseek_v4
