// The table of all weights: our field, official name in files, shape, kind, the layers that have the weight, and its
// division among ranks. Binding, upload, synthetic values and the writer of checkpoints use these tables.
// docs/dev/formats.md explains the names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// The kind of a tensor; for matrices it decides the format.
enum class WeightKind : uint8_t {
  kEmbedding,   // matrix, F32 or BF16 only; devices keep its rows
  kMix,         // the same: mHC mixes
  kDense,       // matrix of any weight format: `X.weight` and its scales
  kExpert,      // the same: matrices of a routed expert
  kCompressor,  // the same: BF16 in released checkpoints
  kSmall,       // the same: router and index weights, small heads of draft modules; BF16 in released checkpoints
  kVector,      // F32 or BF16 in files, f32 here
  kIds,         // I64 or I32 in files, i32 here: expert ids
  kLayers,      // no tensor: the layers are here, in order (kLayerWeights)
  kStages,      // no tensor: the stages of the draft module are here, in order (kLayerWeights, then kStageWeights)
  kExperts,     // no tensor: the routed experts are here, in order (kExpertWeights)
};
constexpr bool IsNested(WeightKind k) {
  return k == WeightKind::kLayers || k == WeightKind::kStages || k == WeightKind::kExperts;
}
constexpr bool IsVector(WeightKind k) { return k == WeightKind::kVector || k == WeightKind::kIds; }
constexpr bool KeepsRows(WeightKind k) { return k == WeightKind::kEmbedding || k == WeightKind::kMix; }
constexpr bool IsAnyFormat(WeightKind k) { return !IsNested(k) && !IsVector(k) && !KeepsRows(k); }

// The slice of one of n ranks.
enum class WeightCut : uint8_t {
  kWhole,         // all of it
  kHeads,         // the rows (elements) of its N/n heads
  kGroups,        // the rows of its G/n groups of heads
  kGroupColumns,  // the columns of its groups
  kRows,          // 1/n of the rows
  kColumns,       // 1/n of the columns
};

// The layers that have the weight. kRanks: a rank's own weight, in no checkpoint (shard.h). The others: which stage of
// which draft module; kOwnEmbed, kOwnHead: if it differs from the model's.
enum class WeightPresence : uint8_t {
  kAlways,
  kCompressed,
  kIndexed,
  kHash,
  kLearned,
  kRanks,
  kFirstMtp,
  kFirstDspark,
  kLastDspark,
  kLast,
  kOwnEmbed,
  kOwnHead
};
// Whether stage `stage` of `count` may have it; does not check the kind of module.
constexpr bool IsOfStage(WeightPresence p, int64_t stage, int64_t count) {
  using enum WeightPresence;
  if (p == kFirstMtp || p == kFirstDspark || p == kOwnEmbed) return stage == 0;
  if (p == kLastDspark || p == kLast || p == kOwnHead) return stage == count - 1;
  return true;
}

// Sizes in the letters of docs/dev/glossary.md.
struct Letters {
  int64_t V, D, H, N, Dh, Dr, Rq, G, Ro, Ni, Di, E, A, F;
  int64_t m = 0, coff = 1;        // of one layer
  int64_t targets = 0, rank = 0;  // of DSpark
};
Letters LettersOf(const Config& config);
Letters LettersOf(const Config& config, int64_t layer);

// The struct that a row's field belongs to; the enclosing structs are also set.
struct WeightOwner {
  Weights* model = nullptr;
  LayerWeights* layer = nullptr;
  ExpertWeights* expert = nullptr;
};
struct WeightField {  // one of the two is set
  QuantTensor* matrix = nullptr;
  Tensor* vector = nullptr;
  WeightField(QuantTensor& m) : matrix(&m) {}  // NOLINT: implicit
  WeightField(Tensor& v) : vector(&v) {}       // NOLINT: implicit
};

struct WeightRow {
  // Official name in files, below the layer or the expert (bind_names.cc has the other spellings). Matrices of any
  // format have no `.weight`. Empty: in no file.
  std::string_view official;
  WeightKind kind;
  WeightCut cut = WeightCut::kWhole;
  WeightPresence presence = WeightPresence::kAlways;
  Shape (*shape)(const Letters&) = nullptr;            // null for nested kinds
  WeightField (*field)(const WeightOwner&) = nullptr;  // null for nested kinds
};

// In the order of the model. A stage of a draft module (`mtp.N.`) is a layer with additional rows.
extern const std::span<const WeightRow> kModelWeights;
extern const std::span<const WeightRow> kLayerWeights;
extern const std::span<const WeightRow> kExpertWeights;
extern const std::span<const WeightRow> kStageWeights;

bool IsPresent(WeightPresence presence, const Config& config, int64_t layer);

// transformers' stacked experts of a layer: one tensor [E, ...] with matrices one after the other. It has rows [first,
// first + count) of kExpertWeights; the outputs of the first matrix come first.
struct StackedExperts {
  std::string_view name;  // below `layers.N.`; OfficialName makes it of transformers' name
  size_t first, count;
};
extern const std::span<const StackedExperts> kStackedExperts;

// One weight of one model.
struct WeightRef {
  const WeightRow* row;
  int64_t layer = -1;   // -1: not in a layer
  int64_t expert = -1;  // -1: not in a routed expert
  int64_t stage = -1;   // -1: not in a draft module; otherwise `layer` is L + stage

  std::string Block() const;  // official, with a dot: "layers.3.", "mtp.0."
  bool in_files() const { return !row->official.empty(); }
  std::string Stem() const;  // official; matrices of any format have no `.weight`
  std::string Name() const;  // official, whole
};

}  // namespace dsv4::deepseek_v4
