#include "model/deepseek_v4/open.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <numeric>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/generation_config.h"
#include "base/stopwatch.h"
#include "base/str.h"
#include "dsv4/model_folder.h"
#include "io/parallel_reader.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/config/gpu_limits.h"
#include "model/deepseek_v4/experts/expert_places.h"
#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/load/synthetic.h"
#include "model/deepseek_v4/load/synthetic_values.h"
#include "model/deepseek_v4/load/tight_experts.h"
#include "model/deepseek_v4/load/upload.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/loaded_model.h"
#include "model/deepseek_v4/pass/describe_plan.h"
#include "model/deepseek_v4/pass/host_scratch.h"
#include "model/deepseek_v4/schema/draft_config.h"
#include "model/deepseek_v4/schema/expert_placement.h"

namespace dsv4::deepseek_v4 {

namespace {

using Models = std::vector<std::unique_ptr<LoadedModel>>;
using LoadProgress = std::function<bool(int64_t, int64_t)>;

template <typename T>
std::string Joined(const std::vector<T>& values) {
  std::string s;
  for (const T& v : values) s += StrCat(s.empty() ? "" : ", ", v);
  return s;
}

ModelFacts FactsOf(const Config& c, const NumericsModes& modes, const BindReport& report) {
  return {.vocab_size = c.vocab_size,
          .hidden_size = c.hidden_size,
          .num_layers = c.num_layers,
          .num_experts = c.num_experts,
          .experts_per_token = c.experts_per_token,
          .max_positions = c.max_positions,
          .bos_token_id = c.bos_token_id,
          .eos_token_ids = c.eos_token_ids,
          .unused_tensors = report.unused_tensors,
          .skipped_tensors = report.skipped_tensors,
          .weight_bytes = report.weight_bytes,
          .kv = MakeKvSpec(c, modes),
          .unusable_draft = report.unusable_draft,
          .draft = c.draft.facts()};
}

// The properties of both kinds of sources that follow from the config.
class Source : public ModelSource {
 public:
  Source(const Config& config, const NumericsModes& modes, BindReport report)
      : config_(config), modes_(modes), report_(std::move(report)), facts_(FactsOf(config, modes, report_)) {}

  const ModelFacts& facts() const override { return facts_; }
  std::vector<std::pair<std::string, std::string>> DescribeConfig() const override;
  std::vector<FormatSummary> formats() const override { return report_.formats; }
  Status CheckRanks(int count) const override { return CheckSharding(config_, count); }
  int SliceForAnyRanks() override {
    const int cuts = MostRanks([this](int count) { return CheckRanks(count); });
    fixed_cuts_ = cuts > 1 ? cuts : 0;
    return cuts;
  }
  int fixed_slices() const override { return fixed_cuts_; }
  int64_t StepMemoryBytes(int64_t max_tokens, int64_t max_rows, int count) const override {
    return Activations::Bytes(ShardConfig(config_, ShardingOf(0, count)), max_tokens, max_rows);
  }
  void KeepExpertsOnHost(DeviceKind device, int count, int64_t bytes, int64_t slots, std::span<const uint64_t> counts,
                         int64_t disk_bytes) override {
    counts_.assign(counts.begin(), counts.end());
    const std::vector<int64_t> expert_bytes = ExpertBytes(device, count);
    placement_ = ExpertPlacement::Coldest(EmbeddingBytes(), expert_bytes, config_.num_experts, bytes, counts_, slots);
    placement_.LeaveOnDisk(expert_bytes, disk_bytes, counts_);
  }
  int64_t HostScratchBytes(int64_t max_context, int num_threads) const override {
    return deepseek_v4::HostScratchBytes(config_, max_context, num_threads);
  }

 protected:
  Sharding ShardingOf(int rank, int count) const { return {.rank = rank, .count = count, .fixed_cuts = fixed_cuts_}; }
  bool is_cut(int count) const { return ShardingOf(0, count).cuts() > 1; }

  // The bytes of one expert of every layer; on GPUs per rank.
  virtual std::vector<int64_t> ExpertBytes(DeviceKind device, int count) const = 0;
  virtual QuantTensor Embedding() const = 0;  // its shape and format
  int64_t EmbeddingBytes() const { return AlignedBytes(FileBytes(Embedding())); }
  // Completes `bytes` with the sizes of experts and of the embedding table.
  ModelSizes SizesOf(const PlacedBytes& bytes, DeviceKind device, int count) const {
    ModelSizes sizes{.weights = bytes.device, .embedding = EmbeddingBytes()};
    sizes.host_embedding = placement_.EmbeddingOnHost() ? sizes.embedding : 0;
    sizes.host_experts = bytes.host - sizes.host_embedding;
    sizes.expert_bytes = ExpertBytes(device, count);
    if (device != DeviceKind::kCpu)
      sizes.weights += ExpertPlaces::Bytes(placement_, sizes.expert_bytes, config_.num_experts);
    const int64_t experts = std::accumulate(sizes.expert_bytes.begin(), sizes.expert_bytes.end(), int64_t{0});
    sizes.experts_on_disk = placement_.DiskByLayer();
    for (size_t l = 0; l < sizes.experts_on_disk.size(); ++l)
      sizes.disk_experts += sizes.experts_on_disk[l] * sizes.expert_bytes[l];
    sizes.decode_bytes = static_cast<double>(bytes.device + bytes.host + sizes.disk_experts - sizes.embedding -
                                             (config_.num_experts - config_.experts_per_token) * experts);
    sizes.experts_on_host = placement_.CountByLayer();
    sizes.host_bytes_per_token = HostBytesOfToken(placement_, sizes.expert_bytes, config_.num_experts,
                                                  config_.experts_per_token, counts_);
    sizes.disk_bytes_per_token = DiskBytesOfToken(placement_, sizes.expert_bytes, config_.num_experts,
                                                  config_.experts_per_token, counts_);
    return sizes;
  }
  std::unique_ptr<LoadedModel> Bound(Model model, DeviceKind device, int count, ExpertHomes homes = {}) const {
    return std::make_unique<BoundModel>(std::move(model), placement_, ExpertBytes(device, count), std::move(homes));
  }
  Models OneModel(Model model, DeviceKind device, ExpertHomes homes = {}) const {
    Models models;
    models.push_back(Bound(std::move(model), device, 1, std::move(homes)));
    return models;
  }
  // Makes one model for each of `count` ranks from weights in host memory.
  Result<Models> MakeRankModels(const Weights& whole, int count, ThreadPool& pool) const {
    Models models;
    for (int rank = 0; rank < count; ++rank) {
      Sharding sharding = ShardingOf(rank, count);
      std::vector<Weights> slices;
      for (; sharding.slice < sharding.num_slices(); ++sharding.slice) {
        DSV4_ASSIGN_OR_RETURN(Weights slice, ShardWeights(whole, sharding, &pool));
        slices.push_back(std::move(slice));
      }
      Weights weights = fixed_cuts_ > 0 ? JoinSlices(std::move(slices)) : std::move(slices.front());
      models.push_back(
          Bound(MakeModel(ShardConfig(config_, sharding), std::move(weights), modes_), DeviceKind::kCpu, count));
    }
    return models;
  }

  std::vector<PlannedOp> DescribeRank(const ExecContext& ctx, const Weights& whole, int count) const {
    return deepseek_v4::DescribePlan(
        ctx, MakeModel(ShardConfig(config_, ShardingOf(0, count)), ShardShapes(whole, ShardingOf(0, count)), modes_));
  }

  const Config config_;
  const NumericsModes modes_;
  const BindReport report_;
  ExpertPlacement placement_;
  int fixed_cuts_ = 0;  // as in Sharding

 private:
  const ModelFacts facts_;
  std::vector<uint64_t> counts_;  // counts that the placement follows
};

std::vector<std::pair<std::string, std::string>> Source::DescribeConfig() const {
  const Config& c = config_;
  std::vector<std::pair<std::string, std::string>> fields;
  const auto add = [&](const char* name, auto value) { fields.emplace_back(name, StrCat(value)); };
  add("vocab_size", c.vocab_size);
  add("hidden_size", c.hidden_size);
  add("num_layers", c.num_layers);
  add("compress_ratios", Joined(c.compress_ratios));
  add("num_heads", c.num_heads);
  add("head_dim", c.head_dim);
  add("rope_dim", c.rope_dim);
  add("q_lora_rank", c.q_lora_rank);
  add("o_groups", c.o_groups);
  add("o_lora_rank", c.o_lora_rank);
  add("window", c.window);
  add("index_heads", c.index_heads);
  add("index_head_dim", c.index_head_dim);
  add("index_topk", c.index_topk);
  add("moe_intermediate", c.moe_intermediate);
  add("num_experts", c.num_experts);
  add("num_shared_experts", c.num_shared_experts);
  add("experts_per_token", c.experts_per_token);
  add("num_hash_layers", c.num_hash_layers);
  add("routed_scaling_factor", c.routed_scaling_factor);
  add("swiglu_limit", std::isinf(c.swiglu_limit) ? std::string("none") : StrCat(c.swiglu_limit));
  add("hc_mult", c.hc_mult);
  add("hc_sinkhorn_iters", c.hc_sinkhorn_iters);
  add("hc_eps", c.hc_eps);
  add("rms_norm_eps", c.rms_norm_eps);
  add("rope_theta", c.rope_theta);
  add("compress_rope_theta", c.compress_rope_theta);
  add("yarn_factor", c.yarn_factor);
  add("yarn_original_positions", c.yarn_original_positions);
  add("yarn_beta_fast", c.yarn_beta_fast);
  add("yarn_beta_slow", c.yarn_beta_slow);
  add("max_positions", c.max_positions);
  add("bos_token_id", c.bos_token_id);
  add("eos_token_ids", Joined(c.eos_token_ids));
  if (c.draft.stages == 0) return fields;
  add("draft_module", NameOf(c.draft.module));
  add("draft_stages", c.draft.stages);
  if (!c.draft.is_dspark()) return fields;
  add("dspark_block_size", c.draft.block);
  add("dspark_noise_token_id", c.draft.noise_token_id);
  add("dspark_target_layer_ids", Joined(c.draft.targets));
  add("dspark_markov_rank", c.draft.markov_rank);
  return fields;
}

class Checkpoint : public Source {
 public:
  Checkpoint(std::shared_ptr<const TensorSource> files, Model model, const BindReport& report)
      : Source(model.config, model.modes, report), files_(std::move(files)), model_(std::move(model)) {}

  std::vector<std::string> files() const override { return files_->files(); }
  Status CheckRanks(int count) const override { return CheckSharding(config_, model_.weights, count); }
  ModelSizes Sizes(DeviceKind device, int count) const override {
    if (device == DeviceKind::kCpu) {
      const Sharding s = ShardingOf(0, count);
      const int64_t copies = s.cuts() * ShardCopyBytes(model_.weights, s);
      return {.weights = report_.weight_bytes,
              .widened = report_.widened_bytes + copies,
              .expert_bytes = BytesOfExperts(model_.weights, FileBytes),
              .mapped = report_.weight_bytes};
    }
    const Sharding sharding = ShardingOf(0, count);
    const Weights first = ShardShapes(model_.weights, sharding);
    const PlacedBytes weights = UploadedBytes(first, placement_, sharding.num_slices()),
                      staging = UploadStagingBytes(first, placement_);
    ModelSizes sizes = SizesOf(weights, device, count);
    sizes.loading = staging.device, sizes.host_staging = staging.host;
    return sizes;
  }
  void KeepExpertsOnHost(DeviceKind device, int count, int64_t bytes, int64_t slots, std::span<const uint64_t> counts,
                         int64_t disk_bytes) override {
    if (device != DeviceKind::kCpu) Source::KeepExpertsOnHost(device, count, bytes, slots, counts, disk_bytes);
  }
  bool CanLeaveOnDisk(DeviceKind device) const override { return device != DeviceKind::kCpu; }
  double MeasureReadRate() const override { return ReadRateOf(files_->maps()); }
  std::vector<PlannedOp> DescribePlan(const ExecContext& ctx, int count) const override {
    return DescribeRank(ctx, model_.weights, count);
  }
  Result<Models> Load(std::span<Device* const> devices, ThreadPool& pool, int64_t available_bytes,
                      const LoadProgress& progress, LoadTimes* times) override {
    Model model = model_;
    Device& device = *devices.front();
    if (device.kind() != DeviceKind::kCpu) {
      if (is_cut(static_cast<int>(devices.size()))) return RankModels(devices, pool, model, progress, times);
      DSV4_ASSIGN_OR_RETURN(model.weights,
                            UploadWeights(device, pool, model.weights, placement_, files_.get(), progress, times));
      return OneModel(std::move(model), device.kind(), HomesOf({}));
    }
    const Stopwatch reading;
    if (files_->num_bytes() < available_bytes) {  // otherwise they are read page by page on demand
      if (!files_->Preload(&pool, progress)) return Cancelled("loading was cancelled");
      times->bytes = files_->num_bytes();
    }
    if (!is_cut(static_cast<int>(devices.size()))) {
      times->read = reading.Seconds();
      return OneModel(std::move(model), device.kind());
    }
    Result<Models> models = MakeRankModels(model.weights, static_cast<int>(devices.size()), pool);
    times->read = reading.Seconds();
    return models;
  }

 protected:
  std::vector<int64_t> ExpertBytes(DeviceKind, int count) const override {
    const Sharding sharding = ShardingOf(0, count);
    std::vector<int64_t> bytes = UploadedExpertBytes(ShardShapes(model_.weights, sharding));
    for (int64_t& of_layer : bytes) of_layer *= sharding.num_slices();
    return bytes;
  }
  QuantTensor Embedding() const override { return model_.weights.embed; }

 private:
  // The sources of experts on the disk. The files stay mapped.
  ExpertHomes HomesOf(const Sharding& sharding) const {
    if (placement_.DiskByLayer().empty()) return {};
    return {std::make_shared<const Weights>(model_.weights), sharding};
  }

  Result<Models> RankModels(std::span<Device* const> devices, ThreadPool& pool, const Model& whole,
                            const LoadProgress& progress, LoadTimes* times) const {
    DSV4_ASSIGN_OR_RETURN(std::vector<Weights> weights, UploadRanks(devices, pool, whole.weights, placement_,
                                                                    files_.get(), progress, times, fixed_cuts_));
    Models models;
    for (size_t r = 0; r < devices.size(); ++r) {
      const Sharding sharding = ShardingOf(static_cast<int>(r), static_cast<int>(devices.size()));
      devices[r]->Bind();
      models.push_back(Bound(MakeModel(ShardConfig(whole.config, sharding), std::move(weights[r]), modes_),
                             devices[r]->kind(), sharding.count, HomesOf(sharding)));
    }
    return models;
  }

  std::shared_ptr<const TensorSource> files_;
  Model model_;  // views of the files until it is loaded
};

class Synthetic : public Source {
 public:
  Synthetic(const SyntheticModel& model, const Config& config, const NumericsModes& modes, int64_t weight_bytes,
            bool tight_experts)
      : Source(config, modes, BindReport{.weight_bytes = weight_bytes}), model_(model), tight_experts_(tight_experts) {}

  std::vector<std::string> files() const override { return {}; }
  // With several ranks on a CPU, the down projections are copied: a third of the experts. This counts half of all
  // weights.
  ModelSizes Sizes(DeviceKind device, int count) const override {
    const bool on_host = device == DeviceKind::kCpu;
    const SyntheticBytes bytes = SyntheticWeightBytes(device, config_, model_, tight_experts_,
                                                      on_host ? Sharding{} : ShardingOf(0, count), placement_);
    PlacedBytes placed = bytes.weights;  // synthetic weights that stand for files are also made
    const std::vector<int64_t> on_disk = placement_.DiskByLayer(), expert_bytes = ExpertBytes(device, count);
    for (size_t l = 0; l < on_disk.size(); ++l) placed.host -= on_disk[l] * expert_bytes[l];
    ModelSizes sizes = SizesOf(placed, device, count);
    sizes.widened = on_host && is_cut(count) ? (bytes.weights.device + bytes.weights.host) / 2 : 0;
    sizes.loading = bytes.making;
    return sizes;
  }
  bool CanLeaveOnDisk(DeviceKind device) const override { return device == DeviceKind::kCpu; }
  std::vector<PlannedOp> DescribePlan(const ExecContext& ctx, int count) const override {
    Weights shapes = SyntheticShapes(config_, model_);
    if (ctx.device == DeviceKind::kCpu || !tight_experts_) UseWideTiles(&shapes);
    return DescribeRank(ctx, shapes, count);
  }
  Result<Models> Load(std::span<Device* const> devices, ThreadPool& pool, int64_t, const LoadProgress& progress,
                      LoadTimes* times) override {
    const Stopwatch making;
    const auto count = static_cast<int>(devices.size());
    if (count > 1) DSV4_RETURN_IF_ERROR(CheckSharding(config_, SyntheticShapes(config_, model_), count));
    if (is_cut(count) && devices.front()->kind() != DeviceKind::kCpu) return MakeRanks(devices, pool, progress, times);
    DSV4_ASSIGN_OR_RETURN(Weights weights, SyntheticWeights(*devices.front(), pool, config_, model_, tight_experts_,
                                                            placement_, {}, progress));
    if (!is_cut(count)) {
      times->read = making.Seconds();
      return OneModel(MakeModel(config_, std::move(weights), modes_), devices.front()->kind());
    }
    Result<Models> models = MakeRankModels(weights, count, pool);
    times->read = making.Seconds();
    return models;
  }

 protected:
  // With several ranks on a CPU the whole model is made.
  std::vector<int64_t> ExpertBytes(DeviceKind device, int count) const override {
    return SyntheticExpertBytes(device, config_, model_, tight_experts_,
                                device == DeviceKind::kCpu ? Sharding{} : ShardingOf(0, count));
  }
  QuantTensor Embedding() const override { return SyntheticShapes(config_, model_).embed; }

 private:
  // Every rank makes its own weights, in parallel with the others.
  Result<Models> MakeRanks(std::span<Device* const> devices, ThreadPool& pool, const LoadProgress& progress,
                           LoadTimes* times) const {
    const Stopwatch making;
    const auto count = static_cast<int>(devices.size());
    std::atomic<bool> stopped = false, out_of_memory = false;
    std::vector<Result<Weights>> made(devices.size(), Result<Weights>(Weights{}));
    std::vector<std::jthread> threads;  // joined, also if one cannot be started
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        const auto at = static_cast<size_t>(rank);
        const LoadProgress mine = [&, rank](int64_t done, int64_t total) {
          if (rank == 0 && progress && !progress(done, total)) stopped = true;
          return !stopped;
        };
        try {
          made[at] = SyntheticWeights(*devices[at], pool, config_, model_, tight_experts_, placement_,
                                      ShardingOf(rank, count), mine);
        } catch (const std::bad_alloc&) {
          out_of_memory = stopped = true;
        }
      });
    }
    threads.clear();
    if (out_of_memory) throw std::bad_alloc();
    Models models;
    for (int rank = 0; rank < count; ++rank) {
      Result<Weights>& weights = made[static_cast<size_t>(rank)];
      if (!weights.ok())
        return Status(weights.status().code(), StrCat("rank ", rank, ": ", weights.status().message()));
      Model model = MakeModel(ShardConfig(config_, ShardingOf(rank, count)), std::move(*weights), modes_);
      models.push_back(Bound(std::move(model), devices.front()->kind(), count));
    }
    times->read = making.Seconds();
    return models;
  }

  const SyntheticModel model_;
  const bool tight_experts_;
};

struct Opened {
  Config config;
  std::shared_ptr<const TensorSource> files;
  Weights weights;
  BindReport report;
};

// Adds the EOS ids of generation_config.json, which may name more than config.json. Ids outside the vocabulary have no
// effect.
Status AddEosIds(const std::string& dir, Config& c) {
  DSV4_ASSIGN_OR_RETURN(const GenerationConfig generation, ReadGenerationConfig(dir));
  for (const int64_t id : generation.eos_token_ids) {
    const auto& known = c.eos_token_ids;
    if (id < 0 || id >= c.vocab_size || std::find(known.begin(), known.end(), id) != known.end()) continue;
    c.eos_token_ids.push_back(static_cast<TokenId>(id));
  }
  return {};
}

Result<Opened> OpenFiles(const std::string& dir, const Device& device, DraftModule draft) {
  Opened out;
  DSV4_ASSIGN_OR_RETURN(out.config, LoadConfig(dir));
  DSV4_RETURN_IF_ERROR(AddEosIds(dir, out.config));
  if (device.kind() != DeviceKind::kCpu) DSV4_RETURN_IF_ERROR(CheckGpuLimits(out.config));
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const TensorSource> files, TensorSource::Open(dir));
  DSV4_ASSIGN_OR_RETURN(out.files, WithDraftFolder(dir, std::move(files), draft));
  DSV4_RETURN_IF_ERROR(LoadDraftConfig(dir, *out.files, draft, &out.config));
  DSV4_ASSIGN_OR_RETURN(out.weights, BindWeights(out.config, out.files, &out.report));
  return out;
}

}  // namespace

Result<std::unique_ptr<ModelSource>> OpenCheckpoint(const std::string& dir, const NumericsModes& modes,
                                                    const Device& device, DraftModule draft, bool tight_experts) {
  DSV4_RETURN_IF_ERROR(CheckModelFolder(dir));
  Result<Opened> opened = OpenFiles(dir, device, draft);
  std::string unusable;
  if (!opened.ok() && draft == DraftModule::kAny) {
    unusable = opened.status().message();
    opened = OpenFiles(dir, device, DraftModule::kNone);
  }
  DSV4_RETURN_IF_ERROR(opened.status());
  auto& [config, files, weights, report] = *opened;
  report.unusable_draft = std::move(unusable);
  if (device.kind() != DeviceKind::kCpu && tight_experts) {
    ThreadPool pool(0);  // reads files on a disk at several places at once
    files->ExpectScattered(true);
    UseTightTiles(&pool, &weights);
    files->ExpectScattered(false);
  }
  Model model = MakeModel(std::move(config), std::move(weights), modes);
  return std::unique_ptr<ModelSource>(std::make_unique<Checkpoint>(std::move(files), std::move(model), report));
}

Result<std::unique_ptr<ModelSource>> OpenSynthetic(const SyntheticModel& model, const NumericsModes& modes,
                                                   const Device& device, DraftModule draft, bool tight_experts) {
  DSV4_ASSIGN_OR_RETURN(const Config config, SyntheticConfig(model, draft));
  const int64_t bytes = SyntheticWeightBytes(device.kind(), config, model, tight_experts, {}, {}).weights.device;
  return std::unique_ptr<ModelSource>(std::make_unique<Synthetic>(model, config, modes, bytes, tight_experts));
}

}  // namespace dsv4::deepseek_v4
