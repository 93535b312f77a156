#include "model/deepseek_v4/load/synthetic_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "base/str.h"
#include "io/safetensors.h"
#include "model/deepseek_v4/load/synthetic.h"
#include "model/deepseek_v4/load/synthetic_values.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/visit_weights.h"
#include "ops/fill_weight/fill_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

namespace fs = std::filesystem;

// A matrix or a vector with its tensors in the file: codes (or values), then block scales.
struct Item {
  QuantTensor matrix;
  Tensor vector;  // either the matrix or the vector exists
  const WeightRow* row = nullptr;
  uint64_t seed = 0;
  float std = 1;
  TensorEntry codes, block_scale, global_scale;  // without a name: does not exist
  int64_t offset = 0;                            // of the codes, from the beginning of the tensors' data
  int64_t global_offset = 0;

  bool is_odd() const { return (codes.num_bytes() + scale_bytes()) % 16 != 0; }
  int64_t scale_bytes() const { return block_scale.name.empty() ? 0 : block_scale.num_bytes(); }
  int64_t num_bytes() const {
    return codes.num_bytes() + scale_bytes() + (global_scale.name.empty() ? 0 : global_scale.num_bytes());
  }
};

struct Shard {
  std::vector<Item> items;
  std::vector<TensorEntry> entries;
  std::string name, prologue;
  int64_t num_bytes = 0;  // of the tensors
};

Item MatrixItem(const std::string& name, const QuantTensor& m) {
  const WeightFormatInfo& f = InfoOf(m.format);
  Item item{.matrix = m, .vector = {}};
  const std::string base = name.substr(0, name.rfind(".weight"));
  item.codes = {name, f.codes, {m.rows, f.packed() ? m.cols / 2 : m.cols}};
  if (f.quantised()) {
    item.block_scale = {StrCat(base, f.scale_name),
                        f.grid() ? m.scale_dtype : f.scale,
                        {CeilDiv(m.rows, f.block_rows), CeilDiv(m.cols, f.block_cols)}};
  }
  if (f.global_scale) item.global_scale = {base + ".weight_scale_2", DType::kF32, {}};
  return item;
}

Item VectorItem(const WeightRef& ref, const Tensor& t) {
  Item item{.matrix = {}, .vector = t, .row = ref.row};
  std::vector<int64_t> shape;
  for (int i = 0; i < t.shape.rank(); ++i) shape.push_back(t.shape[i]);
  const DType dtype = t.dtype == DType::kI32 ? DType::kI64 : DType::kF32;  // hash tables: I64, as published
  item.codes = {ref.Name(), dtype, shape};
  return item;
}

std::vector<Shard> PlanShards(const Config& config, const SyntheticModel& model, int64_t shard_bytes) {
  const Weights w = SyntheticShapes(config, model);
  std::vector<Shard> shards(1);
  uint64_t number = 0;
  const auto add = [&](Item item) {
    item.seed = RandomBits(model.seed, number);
    if (!shards.back().items.empty() && shards.back().num_bytes + item.num_bytes() > shard_bytes) shards.emplace_back();
    shards.back().num_bytes += item.num_bytes();
    shards.back().items.push_back(std::move(item));
  };
  VisitNamedWeights(
      w,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (!m) return;
        Item item = MatrixItem(ref.Name(), m);
        item.std = SyntheticStd(m, ref.row->kind);
        SetFillScales(&item.matrix, item.std);
        add(std::move(item));
        ++number;
      },
      [&](const WeightRef& ref, const Tensor& t) {
        if (!t) return;
        if (ref.in_files()) add(VectorItem(ref, t));
        ++number;
      });
  for (size_t i = 0; i < shards.size(); ++i) {
    Shard& s = shards[i];
    std::string digits[2] = {StrCat(i + 1), StrCat(shards.size())};
    for (std::string& d : digits) d.insert(0, 5 - std::min<size_t>(d.size(), 5), '0');
    s.name = StrCat("model-", digits[0], "-of-", digits[1], ".safetensors");
    int64_t offset = 0;
    // Scalars and vectors of odd lengths are at the end, so that matrices begin at multiples of 8.
    for (const bool at_end : {false, true}) {
      for (Item& item : s.items) {
        if (item.is_odd() != at_end) continue;
        item.offset = offset;
        offset += item.codes.num_bytes() + item.scale_bytes();
        s.entries.push_back(item.codes);
        if (!item.block_scale.name.empty()) s.entries.push_back(item.block_scale);
      }
    }
    for (Item& item : s.items) {
      if (item.global_scale.name.empty()) continue;
      item.global_offset = offset;
      offset += item.global_scale.num_bytes();
      s.entries.push_back(item.global_scale);
    }
    s.prologue = SafetensorsPrologue(s.entries);
  }
  return shards;
}

std::string IndexJson(const std::vector<Shard>& shards, int64_t total) {
  std::string text = StrCat("{\n  \"metadata\": {\"total_size\": ", total, "},\n  \"weight_map\": {");
  const char* separator = "\n";
  for (const Shard& s : shards) {
    for (const TensorEntry& t : s.entries) {
      text += StrCat(separator, "    \"", t.name, "\": \"", s.name, "\"");
      separator = ",\n";
    }
  }
  return text + "\n  }\n}\n";
}

std::string ConfigJson(const Config& c, const SyntheticModel& model) {
  Json j = {{"architectures", {"DeepseekV4ForCausalLM"}},
            {"model_type", "deepseek_v4"},
            {"vocab_size", c.vocab_size},
            {"hidden_size", c.hidden_size},
            {"num_hidden_layers", c.num_layers},
            {"num_attention_heads", c.num_heads},
            {"num_key_value_heads", 1},
            {"head_dim", c.head_dim},
            {"qk_rope_head_dim", c.rope_dim},
            {"q_lora_rank", c.q_lora_rank},
            {"o_groups", c.o_groups},
            {"o_lora_rank", c.o_lora_rank},
            {"sliding_window", c.window},
            {"moe_intermediate_size", c.moe_intermediate},
            {"n_routed_experts", c.num_experts},
            {"n_shared_experts", c.num_shared_experts},
            {"num_experts_per_tok", c.experts_per_token},
            {"num_hash_layers", c.num_hash_layers},
            {"scoring_func", "sqrtsoftplus"},
            {"topk_method", "noaux_tc"},
            {"norm_topk_prob", true},
            {"hidden_act", "silu"},
            {"routed_scaling_factor", c.routed_scaling_factor},
            {"swiglu_limit", c.swiglu_limit},
            {"index_n_heads", c.index_heads},
            {"index_head_dim", c.index_head_dim},
            {"index_topk", c.index_topk},
            {"hc_mult", c.hc_mult},
            {"hc_sinkhorn_iters", c.hc_sinkhorn_iters},
            {"hc_eps", c.hc_eps},
            {"rms_norm_eps", c.rms_norm_eps},
            {"compress_ratios", c.compress_ratios},
            {"rope_theta", c.rope_theta},
            {"compress_rope_theta", c.compress_rope_theta},
            {"rope_scaling",
             {{"type", "yarn"},
              {"factor", c.yarn_factor},
              {"original_max_position_embeddings", c.yarn_original_positions},
              {"beta_fast", c.yarn_beta_fast},
              {"beta_slow", c.yarn_beta_slow}}},
            {"max_position_embeddings", c.max_positions},
            {"bos_token_id", c.bos_token_id},
            {"eos_token_id", c.eos_token_ids.front()},
            {"tie_word_embeddings", false},
            {"torch_dtype", "bfloat16"}};
  j["synthetic"] = {{"shape", model.shape},
                    {"fp8_dense", model.fp8_dense},
                    {"experts", static_cast<int>(model.experts)},
                    {"skewed_routing", model.skewed_routing},
                    {"seed", model.seed}};
  return j.dump(2) + "\n";
}

// Fills items on the device or directly in the map of the file.
class Filler {
 public:
  Filler(Device& device, ThreadPool& pool, const Config& config, const SyntheticModel& model)
      : device_(device), config_(config), model_(model), ctx_(device.Context(&pool, false)) {}

  // Allocates memory for the largest item if the device cannot write to the map.
  Status Prepare(const std::vector<Shard>& shards) {
    if (device_.kind() == DeviceKind::kCpu) return {};
    int64_t largest = 0;
    for (const Shard& s : shards) {
      for (const Item& item : s.items) {
        largest = std::max(largest, AlignedBytes(item.codes.num_bytes()) + AlignedBytes(item.scale_bytes()));
      }
    }
    if (!buffer_.Allocate(device_, largest)) {
      return ResourceExhausted(StrCat("no memory for the largest matrix, ", largest, " bytes, on ", device_.place()));
    }
    return {};
  }

  void Fill(const Item& item, uint8_t* tensors) {
    uint8_t* codes = tensors + item.offset;
    if (item.vector) {
      FillVector(item, codes);
      return;
    }
    uint8_t* scales = codes + item.codes.num_bytes();
    const bool direct = device_.kind() == DeviceKind::kCpu;
    FillWeightArgs args{.w = item.matrix,
                        .codes = direct ? codes : buffer_.data(),
                        .block_scale = nullptr,
                        .seed = item.seed,
                        .std = item.std};
    if (item.scale_bytes() > 0)
      args.block_scale = direct ? scales : buffer_.data() + AlignedBytes(item.codes.num_bytes());
    args.w.codes = args.codes;
    args.w.block_scale = args.block_scale;
    FillWeight(ctx_, args);
    if (!direct) {
      device_.Download(codes, args.codes, item.codes.num_bytes());
      if (item.scale_bytes() > 0) device_.Download(scales, args.block_scale, item.scale_bytes());
    }
    if (!item.global_scale.name.empty()) std::memcpy(tensors + item.global_offset, &item.matrix.global_scale, 4);
  }

 private:
  void FillVector(const Item& item, uint8_t* out) const {
    if (item.vector.dtype == DType::kF32) {
      std::memcpy(out, SyntheticVector(*item.row, config_, model_, item.vector.num_elements(), item.seed).data(),
                  static_cast<size_t>(item.codes.num_bytes()));
      return;
    }
    for (const int64_t expert : SyntheticHashTable(config_, model_, item.seed)) {
      std::memcpy(out, &expert, 8);
      out += 8;
    }
  }

  Device& device_;
  const Config& config_;
  const SyntheticModel& model_;
  ExecContext ctx_;
  DeviceBuffer buffer_;
};

std::string ParentOf(const fs::path& path) { return path.has_parent_path() ? path.parent_path().string() : "."; }

// The folder of a checkpoint, and a second folder for shards that do not fit the first.
struct NewFolders {
  fs::path dir, overflow;  // overflow: empty if there is none
  size_t in_dir = 0;       // number of shards in `dir`; the others are in `overflow`

  // Where a shard is written.
  std::string FileOf(size_t shard, const std::string& name) const {
    return ((shard < in_dir ? dir : overflow) / name).string();
  }
  // If one folder cannot be made, removes the other.
  Status Make(const std::vector<Shard>& shards) const {
    if (::mkdir(dir.c_str(), 0777) != 0) return CannotMake(dir);
    std::error_code error;
    if (!overflow.empty() && ::mkdir(overflow.c_str(), 0777) != 0) {
      const Status status = CannotMake(overflow);
      fs::remove(dir, error);
      return status;
    }
    for (size_t i = in_dir; i < shards.size(); ++i) {
      fs::create_symlink(fs::absolute(FileOf(i, shards[i].name)), dir / shards[i].name, error);
      if (!error) continue;
      Remove();
      return InvalidArgument(StrCat("cannot make a link in '", dir.string(), "': ", error.message()));
    }
    return {};
  }
  void Remove() const {
    std::error_code error;
    fs::remove_all(dir, error);
    if (!overflow.empty()) fs::remove_all(overflow, error);
  }

 private:
  static Status CannotMake(const fs::path& path) {
    return InvalidArgument(StrCat("cannot make the folder '", path.string(), "': ", std::strerror(errno)));
  }
};

// The path of a folder that can be made, without a trailing slash.
Result<fs::path> NewFolder(const std::string& name) {
  const fs::path folder = fs::path(name).lexically_normal();
  fs::path path = folder.has_filename() ? folder : folder.parent_path();
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error))) {
    return InvalidArgument(StrCat("'", path.string(), "' exists already; name a new folder"));
  }
  if (!fs::is_directory(ParentOf(path), error))
    return NotFound(StrCat("no folder '", ParentOf(path), "' to write '", path.string(), "' in"));
  return path;
}

// Assigns shards to folders. `text_bytes`: the size of index and config.json.
Result<NewFolders> PlaceShards(const std::vector<Shard>& shards, size_t text_bytes, const std::string& dir,
                               const SyntheticDiskOptions& options) {
  NewFolders out;
  DSV4_ASSIGN_OR_RETURN(out.dir, NewFolder(dir));
  if (!options.overflow.empty()) {
    DSV4_ASSIGN_OR_RETURN(out.overflow, NewFolder(options.overflow));
    if (out.overflow == out.dir)
      return InvalidArgument(StrCat("the folder and the overflow folder are both '", out.dir.string(),
                                    "'; name a folder on another disk"));
  }
  const int64_t free = options.dir_bytes > 0 ? options.dir_bytes : FreeDiskBytes(ParentOf(out.dir));
  auto needed = static_cast<int64_t>(text_bytes);
  int64_t beside = 0;
  for (const Shard& s : shards) {
    const int64_t bytes = s.num_bytes + static_cast<int64_t>(s.prologue.size());
    const bool fits = free < 0 || needed + bytes <= free;
    if (!out.overflow.empty() && (beside > 0 || !fits)) {
      beside += bytes;
    } else {
      needed += bytes;
      ++out.in_dir;
    }
  }
  if (free >= 0 && needed > free) {
    return ResourceExhausted(StrCat("the checkpoint takes ", needed, " bytes and the disk of '", ParentOf(out.dir),
                                    "' has ", free, " free; use fewer layers (--layers) or another disk"));
  }
  if (beside == 0) {
    out.overflow.clear();
    return out;
  }
  const int64_t free_beside = FreeDiskBytes(ParentOf(out.overflow));
  if (free_beside >= 0 && beside > free_beside) {
    return ResourceExhausted(StrCat(beside, " bytes of the checkpoint do not fit the disk of '", ParentOf(out.dir),
                                    "', and the disk of '", ParentOf(out.overflow), "' has ", free_beside,
                                    " free; use fewer layers (--layers) or another disk"));
  }
  return out;
}

}  // namespace

Status WriteSynthetic(Device& device, ThreadPool& pool, const SyntheticModel& model, const std::string& dir,
                      const std::function<bool(int64_t, int64_t)>& progress, const SyntheticDiskOptions& options) {
  DSV4_ASSIGN_OR_RETURN(const Config config, SyntheticConfig(model));
  const std::vector<Shard> shards = PlanShards(config, model, options.shard_bytes);
  int64_t total = 0;
  for (const Shard& s : shards) total += s.num_bytes;
  const std::string index = IndexJson(shards, total), config_text = ConfigJson(config, model);
  DSV4_ASSIGN_OR_RETURN(const NewFolders folders, PlaceShards(shards, index.size() + config_text.size(), dir, options));
  Filler filler(device, pool, config, model);
  DSV4_RETURN_IF_ERROR(filler.Prepare(shards));
  const auto write = [&]() -> Status {
    int64_t done = 0;
    for (size_t i = 0; i < shards.size(); ++i) {
      const Shard& s = shards[i];
      const auto prologue = static_cast<int64_t>(s.prologue.size());
      DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<NewMappedFile> file,
                            NewMappedFile::Create(folders.FileOf(i, s.name), prologue + s.num_bytes));
      std::memcpy(file->data(), s.prologue.data(), s.prologue.size());
      for (const Item& item : s.items) {
        filler.Fill(item, file->data() + prologue);
        file->StartWriting(prologue + item.offset, item.codes.num_bytes() + item.scale_bytes());
        done += item.num_bytes();
        if (progress && !progress(done, total)) return Cancelled("writing the checkpoint was cancelled");
      }
      DSV4_RETURN_IF_ERROR(device.Synchronize());
      DSV4_RETURN_IF_ERROR(file->Finish());
    }
    DSV4_RETURN_IF_ERROR(WriteFile((folders.dir / "model.safetensors.index.json").string(), index));
    return WriteFile((folders.dir / "config.json").string(), config_text);
  };
  Status status = folders.Make(shards);
  if (status.ok()) status = write();
  if (!status.ok()) folders.Remove();
  return status;
}

}  // namespace dsv4::deepseek_v4
