#include "model/deepseek_v4/load/synthetic.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/str.h"
#include "model/deepseek_v4/config/rope.h"
#include "model/deepseek_v4/load/synthetic_values.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/visit_weights.h"
#include "ops/fill_weight/fill_weight.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

void AddDraftModule(DraftModule module, Config* c) {
  DraftConfig& d = c->draft;
  if (module == DraftModule::kMtp) d = {.module = module, .stages = 1, .targets = {}};
  if (module == DraftModule::kDspark) {
    d = {.module = module,
         .stages = 3,
         .block = 5,
         .noise_token_id = static_cast<TokenId>(c->vocab_size - 481),
         .targets = {},
         .markov_rank = c->hidden_size > 4096 ? 512 : std::max<int64_t>(64, c->hidden_size / 16)};
    for (int64_t l = std::max<int64_t>(0, c->num_layers - 3); l < c->num_layers; ++l) d.targets.push_back(l);
  }
  c->compress_ratios.resize(static_cast<size_t>(c->num_layers + d.stages), 0);
}

// The common values of the released models.
Config ReleasedConfig() {
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
  return c;
}

// The ratios of the first layers, then `pairs` times 4 and 128, then 4 for the last layer.
void SetLayers(std::vector<int64_t> first_ratios, int64_t pairs, Config* c) {
  c->compress_ratios = std::move(first_ratios);
  for (int64_t i = 0; i < pairs; ++i) c->compress_ratios.insert(c->compress_ratios.end(), {4, 128});
  c->compress_ratios.push_back(4);
  c->num_layers = static_cast<int64_t>(c->compress_ratios.size());
}

Config FlashConfig() {
  Config c = ReleasedConfig();
  c.hidden_size = 4096;
  c.num_heads = 64;
  c.q_lora_rank = 1024;
  c.o_groups = 8;
  c.moe_intermediate = 2048;
  c.num_experts = 256;
  c.routed_scaling_factor = 1.5f;
  c.index_topk = 512;
  SetLayers({0, 0}, 20, &c);
  return c;
}

Config ProConfig() {
  Config c = ReleasedConfig();
  c.hidden_size = 7168;
  c.num_heads = 128;
  c.q_lora_rank = 1536;
  c.o_groups = 16;
  c.moe_intermediate = 3072;
  c.num_experts = 384;
  c.routed_scaling_factor = 2.5f;
  c.index_topk = 1024;
  SetLayers({128, 128}, 29, &c);
  return c;
}

Config NanoConfig() {
  Config c = ReleasedConfig();
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
  SetLayers({0}, 2, &c);
  return c;
}

}  // namespace

Result<Config> SyntheticConfig(const SyntheticModel& model, DraftModule draft) {
  const bool is_known = model.shape == "flash" || model.shape == "pro" || model.shape == "nano";
  if (!is_known) return InvalidArgument(StrCat("no synthetic model '", model.shape, "'; use flash, pro or nano"));
  Config c = model.shape == "flash" ? FlashConfig() : model.shape == "pro" ? ProConfig() : NanoConfig();
  if (model.num_layers < 0 || model.num_layers > c.num_layers) {
    return InvalidArgument(StrCat("synthetic ", model.shape, " with ", model.num_layers, " layers: it has ",
                                  c.num_layers, "; use 1 to ", c.num_layers, ", or 0 for all"));
  }
  if (model.num_layers > 0) c.num_layers = model.num_layers;
  c.compress_ratios.resize(static_cast<size_t>(c.num_layers));
  c.num_hash_layers = std::min(c.num_hash_layers, c.num_layers);
  AddDraftModule(draft, &c);
  return c;
}

namespace {

bool Packs(DeviceKind device, const QuantTensor& m, bool keep_rows) {
  return device != DeviceKind::kCpu && !keep_rows && m.format != WeightFormat::kF32;
}

int64_t RowsBytes(const QuantTensor& m) {
  return AlignedBytes(m.rows * m.row_bytes()) + AlignedBytes(FileScaleBytes(m));
}
// The tensor in tight format if it is kept in tight tiles, otherwise in the format of its rows.
QuantTensor Kept(const QuantTensor& m, bool tight) {
  QuantTensor kept = m;
  if (!tight) kept.format = FormatOfRows(m.format), kept.exponent_base = 0;
  return kept;
}

int64_t MadeBytes(DeviceKind device, const QuantTensor& m, bool keep_rows, bool tight) {
  if (!m) return 0;
  const QuantTensor kept = Kept(m, tight);
  return Packs(device, m, keep_rows) ? AlignedBytes(PackedCodeBytes(kept)) + AlignedBytes(PackedScaleBytes(kept))
                                     : RowsBytes(kept);
}

struct DeviceSizes {
  PlacedBytes total;    // of the weights
  int64_t staging = 0;  // of the largest matrix, before it is packed
  int64_t columns = 0;  // of the largest slice of columns
  int64_t packed = 0;   // of the largest matrix that is packed for the host

  int64_t buffers() const { return staging + columns + packed; }
};

DeviceSizes MeasureSizes(DeviceKind device, const Weights& whole, bool tight, const Sharding& sharding,
                         const ExpertPlacement& placement) {
  const int count = sharding.cuts(), num_slices = sharding.num_slices();
  DeviceSizes sizes;
  VisitNamedWeights(
      whole,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (!m || !Packs(device, m, KeepsRows(ref.row->kind))) return;
        sizes.staging = std::max(sizes.staging, RowsBytes(m));
        if (count > 1 && SliceOf(ref.row->cut) == Slice::kColumns) {
          sizes.columns = std::max(sizes.columns,
                                   AlignedBytes(CodeSliceBytes(m, count)) + AlignedBytes(ScaleSliceBytes(m, count)));
        }
      },
      [](const WeightRef&, const Tensor&) {});
  const Weights slices = ShardShapes(whole, sharding);
  VisitNamedWeights(
      slices,
      [&](const WeightRef& ref, const QuantTensor& m) {
        const int64_t bytes = MadeBytes(device, m, KeepsRows(ref.row->kind), tight);
        const bool on_host = placement.OnHost(ref) || placement.OnDisk(ref);
        (on_host ? sizes.total.host : sizes.total.device) += TimesInRank(ref, num_slices) * bytes;
        if (on_host && Packs(device, m, KeepsRows(ref.row->kind))) sizes.packed = std::max(sizes.packed, bytes);
      },
      [&](const WeightRef& ref, const Tensor& t) {
        sizes.total.device += t ? TimesInRank(ref, num_slices) * AlignedBytes(t.num_bytes()) : 0;
      });
  for (const LayerWeights& layer : whole.layers)
    sizes.total.device += num_slices * AlignedBytes(ExpertTableBytes(layer.moe));
  return sizes;
}

// Makes the weights of one rank, tensor by tensor.
class SyntheticMaker {
 public:
  SyntheticMaker(Device& device, ThreadPool& pool, const Config& config, const SyntheticModel& model, bool tight,
                 const ExpertPlacement& placement, const Sharding& sharding, Weights* w)
      : device_(device),
        ctx_(device.Context(&pool, false)),
        config_(config),
        model_(model),
        tight_(tight),
        placement_(placement),
        sharding_(sharding),
        w_(*w),
        others_(static_cast<size_t>(sharding.num_slices() - 1), *w),
        sizes_(MeasureSizes(device.kind(), *w, tight, sharding, placement)),
        arena_(std::make_shared<WeightArena>()) {}

  Status Prepare() {
    if (arena_->Allocate(device_, sizes_.total) && staging_.Allocate(device_, sizes_.staging) &&
        columns_.Allocate(device_, sizes_.columns) && packed_.Allocate(device_, sizes_.packed))
      return {};
    const PlacedBytes bytes = sizes_.total;
    return ResourceExhausted(
        StrCat("synthetic weights take ", bytes.device + sizes_.buffers(), " bytes of memory on ", device_.place(),
               bytes.host > 0 ? StrCat(" and ", bytes.host, " of host memory") : "", "; use fewer layers (--layers)"));
  }

  int64_t done() const { return arena_->taken(); }
  int64_t total() const { return sizes_.total.device + sizes_.total.host; }
  // Returns the weights when everything is made.
  Weights Take() {
    w_.storage = arena_;
    if (sharding_.fixed_cuts == 0) return std::move(w_);
    std::vector<Weights> slices = {std::move(w_)};
    for (Weights& other : others_) slices.push_back(std::move(other));
    return JoinSlices(std::move(slices));
  }

  void Make(const WeightRef& ref, QuantTensor& m, uint64_t number) {
    const bool packs = Packs(device_.kind(), m, KeepsRows(ref.row->kind)),
               on_host = placement_.OnHost(ref) || placement_.OnDisk(ref);
    const int64_t code_bytes = m.rows * m.row_bytes(), scale_bytes = FileScaleBytes(m);
    uint8_t* codes = packs ? staging_.data() : arena_->Take(code_bytes, on_host);
    uint8_t* scales = packs ? codes + AlignedBytes(code_bytes) : arena_->Take(scale_bytes, on_host);
    const float std = SyntheticStd(m, ref.row->kind);
    m.codes = codes;
    m.block_scale = scale_bytes > 0 ? scales : nullptr;
    SetFillScales(&m, std);
    FillWeight(ctx_, {.w = m,
                      .codes = codes,
                      .block_scale = scale_bytes > 0 ? scales : nullptr,
                      .seed = RandomBits(model_.seed, number),
                      .std = std});
    m = Kept(m, tight_ && packs);
    if (!packs) return;
    if (sharding_.cuts() > 1 && IsKeptWhole(ref.row->cut)) *WholeOf(ref, w_).matrix = Pack(m, /*on_host=*/false);
    const QuantTensor whole = m;
    ForEachSlice(ref, [&](const Sharding& s, Weights& w) {
      *FieldOf(ref, w).matrix = Pack(SliceOfRank(whole, SliceOf(ref.row->cut), s), on_host);
    });
  }

  void Make(const WeightRef& ref, Tensor& t, uint64_t number) {
    const uint64_t seed = RandomBits(model_.seed, number);
    const auto placed = [&](const Tensor& values) {
      uint8_t* data = arena_->Take(values.num_bytes());
      device_.Upload(data, values.data, values.num_bytes());
      return Tensor{data, values.dtype, values.shape};
    };
    const auto upload = [&](void* values) {
      const Tensor whole{values, t.dtype, t.shape};
      if (sharding_.cuts() > 1 && IsKeptWhole(ref.row->cut)) *WholeOf(ref, w_).vector = placed(whole);
      ForEachSlice(ref, [&](const Sharding& s, Weights& w) {
        const bool cut = s.count > 1 && SliceOf(ref.row->cut) == Slice::kRows;
        *FieldOf(ref, w).vector = placed(cut ? VectorSlice(whole, s) : whole);
      });
    };
    if (t.dtype == DType::kI32) return upload(SyntheticHashTable(config_, model_, seed).data());
    std::vector<float> values = SyntheticVector(*ref.row, config_, model_, t.num_elements(), seed);
    if (&t == &w_.plain_frequencies) values = PlainRopeFrequencies(config_);
    if (&t == &w_.compress_frequencies) values = CompressRopeFrequencies(config_);
    upload(values.data());
  }

  // Call after all weights: makes the kernels' copies of the tables of experts.
  void MakeTables() {
    MakeTablesOf(w_);
    for (Weights& other : others_) MakeTablesOf(other);
  }

 private:
  void MakeTablesOf(Weights& w) {
    for (LayerWeights& layer : w.layers) {
      const int64_t n = ExpertTableBytes(layer.moe);
      uint8_t* table = arena_->Take(n);
      device_.Upload(table, ExpertTable(layer.moe).data(), n);
      layer.moe.table = reinterpret_cast<const ExpertWeights*>(table);
    }
  }

  // Calls make(sharding, weights) for each of the rank's slices of a divided weight; once for a whole weight.
  template <typename Make>
  void ForEachSlice(const WeightRef& ref, const Make& make) {
    Sharding s = sharding_;
    make(s.Of(ref), w_);
    if (s.Of(ref).count == 1 || SliceOf(ref.row->cut) == Slice::kWhole) return;
    for (Weights& other : others_) ++s.slice, make(s.Of(ref), other);
  }

  // Packs into the arena. Tiles for the host are first packed in packed_.
  QuantTensor Pack(const QuantTensor& m, bool on_host) {
    const int64_t code_bytes = PackedCodeBytes(m), scale_bytes = PackedScaleBytes(m);
    const PackWeightArgs to{.w = m,
                            .codes = arena_->Take(code_bytes, on_host),
                            .block_scale = scale_bytes > 0 ? arena_->Take(scale_bytes, on_host) : nullptr};
    PackWeightArgs args = to;
    if (on_host) {
      args.codes = packed_.data();
      if (scale_bytes > 0) args.block_scale = packed_.data() + AlignedBytes(code_bytes);
    }
    PackWeight(ctx_, args);
    if (on_host) {
      device_.CopyWithin(to.codes, args.codes, code_bytes);
      if (scale_bytes > 0) device_.CopyWithin(to.block_scale, args.block_scale, scale_bytes);
    }
    return PackedView(to);
  }

  QuantTensor SliceOfRank(const QuantTensor& m, Slice cut, const Sharding& s) {
    if (s.count == 1 || cut == Slice::kWhole) return m;
    if (cut == Slice::kRows) return RowSlice(m, s);
    std::vector<ColumnCopy> copies;
    uint8_t* scales = columns_.data() + AlignedBytes(CodeSliceBytes(m, s.count));
    const QuantTensor slice = ColumnSlice(m, s, columns_.data(), scales, &copies);
    for (const ColumnCopy& c : copies) device_.CopyColumns(c.to, c.from, c.rows, c.bytes, c.from_stride);
    return slice;
  }

  Device& device_;
  const ExecContext ctx_;
  const Config& config_;
  const SyntheticModel& model_;
  const bool tight_;
  const ExpertPlacement& placement_;
  const Sharding sharding_;
  Weights& w_;
  std::vector<Weights> others_;  // the rank's slices after its first
  const DeviceSizes sizes_;
  std::shared_ptr<WeightArena> arena_;
  DeviceBuffer staging_, columns_, packed_;
};

}  // namespace

SyntheticBytes SyntheticWeightBytes(DeviceKind device, const Config& config, const SyntheticModel& model, bool tight,
                                    const Sharding& sharding, const ExpertPlacement& placement) {
  const DeviceSizes sizes = MeasureSizes(device, SyntheticShapes(config, model), tight, sharding, placement);
  return {sizes.total, sizes.buffers()};
}

std::vector<int64_t> SyntheticExpertBytes(DeviceKind device, const Config& config, const SyntheticModel& model,
                                          bool tight, const Sharding& sharding) {
  std::vector<int64_t> bytes = BytesOfExperts(
      ShardShapes(SyntheticShapes(config, model), sharding),
      [&](const QuantTensor& m) { return MadeBytes(device, m, /*keep_rows=*/false, tight); });
  for (int64_t& of_layer : bytes) of_layer *= sharding.num_slices();
  return bytes;
}

Result<Weights> SyntheticWeights(Device& device, ThreadPool& pool, const Config& config, const SyntheticModel& model,
                                 bool tight, const ExpertPlacement& placement, const Sharding& sharding,
                                 const std::function<bool(int64_t, int64_t)>& progress) {
  device.Bind();
  Weights w = SyntheticShapes(config, model);
  SyntheticMaker maker(device, pool, config, model, tight, placement, sharding, &w);
  DSV4_RETURN_IF_ERROR(maker.Prepare());
  uint64_t number = 0;
  bool stopped = false;
  const auto make = [&](const WeightRef& ref, auto& weight) {
    if (!weight || stopped || ref.row->presence == WeightPresence::kRanks) return;
    maker.Make(ref, weight, number);
    stopped = ++number % 16 == 0 && progress && !progress(maker.done(), maker.total());
  };
  VisitNamedWeights(w, make, make);
  if (stopped) return Cancelled("making the synthetic weights was cancelled");
  if (device.kind() != DeviceKind::kCpu) maker.MakeTables();
  DSV4_RETURN_IF_ERROR(device.Synchronize());
  return maker.Take();
}

}  // namespace dsv4::deepseek_v4
