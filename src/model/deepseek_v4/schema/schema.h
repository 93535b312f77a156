// Every weight of the model, once: our field, its names in files, shape, kind, which layers have it, how ranks divide
// it. Binding, upload, synthetic values and the writer of checkpoints walk these tables; docs/dev/formats.md explains
// the names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// What a tensor is, and for matrices what decides their format.
enum class WeightKind : uint8_t {
  kEmbedding,   // matrix, F32 or BF16 only; devices keep its rows
  kMix,         // the same: mHC
  kDense,       // matrix of any weight format: `X.weight` and its scales
  kExpert,      // the same: a routed expert's
  kCompressor,  // the same: BF16 in released checkpoints
  kSmall,       // the same: router and index weights, small heads of draft modules; BF16 in released checkpoints
  kVector,      // F32 or BF16 in files, f32 here
  kIds,         // I64 or I32 in files, i32 here: expert ids
  kLayers,      // no tensor: one layer after the other stands here (kLayerWeights)
  kStages,      // no tensor: one stage of the draft module after the other (kLayerWeights, then kStageWeights)
  kExperts,     // no tensor: one routed expert after the other stands here (kExpertWeights)
};
constexpr bool IsNested(WeightKind k) {
  return k == WeightKind::kLayers || k == WeightKind::kStages || k == WeightKind::kExperts;
}
constexpr bool IsVector(WeightKind k) { return k == WeightKind::kVector || k == WeightKind::kIds; }
constexpr bool KeepsRows(WeightKind k) { return k == WeightKind::kEmbedding || k == WeightKind::kMix; }
constexpr bool IsAnyFormat(WeightKind k) { return !IsNested(k) && !IsVector(k) && !KeepsRows(k); }

// What one of n ranks holds.
enum class WeightCut : uint8_t {
  kWhole,         // all of it
  kHeads,         // the rows (elements) of its N/n heads
  kGroups,        // the rows of its G/n groups of heads
  kGroupColumns,  // the columns of its groups
  kRows,          // 1/n of the rows
  kColumns,       // 1/n of the columns
};

// Which layers have it; kRanks: none in a checkpoint, a rank's own (shard.h); the last four: which stage of which draft
// module.
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
  kLast
};
// Whether stage `stage` of `count` may have it, the module apart.
constexpr bool IsOfStage(WeightPresence p, int64_t stage, int64_t count) {
  using enum WeightPresence;
  if (p == kFirstMtp || p == kFirstDspark) return stage == 0;
  if (p == kLastDspark || p == kLast) return stage == count - 1;
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

// The struct that a row's field is of; those around it are there, too.
struct WeightOwner {
  Weights* model = nullptr;
  LayerWeights* layer = nullptr;
  ExpertWeights* expert = nullptr;
};
struct WeightField {  // of the two, the one that it is
  QuantTensor* matrix = nullptr;
  Tensor* vector = nullptr;
  WeightField(QuantTensor& m) : matrix(&m) {}  // NOLINT: implicit
  WeightField(Tensor& v) : vector(&v) {}       // NOLINT: implicit
};

struct WeightRow {
  // Names in files, below the layer or the expert; of matrices of any format without `.weight`. Empty: in no file.
  std::string_view official;
  std::string_view transformers;  // without `model.`
  WeightKind kind;
  WeightCut cut = WeightCut::kWhole;
  WeightPresence presence = WeightPresence::kAlways;
  Shape (*shape)(const Letters&) = nullptr;            // null where nested
  WeightField (*field)(const WeightOwner&) = nullptr;  // null where nested
};

// In the order of the model. A stage of a draft module (`mtp.N.`) is a layer with rows of its own.
extern const std::span<const WeightRow> kModelWeights;
extern const std::span<const WeightRow> kLayerWeights;
extern const std::span<const WeightRow> kExpertWeights;
extern const std::span<const WeightRow> kStageWeights;

bool IsPresent(WeightPresence presence, const Config& config, int64_t layer);

// transformers' experts of a layer, matrices one behind the other in one tensor [E, ...]: rows [first, first + count)
// of kExpertWeights, the outputs of the first in front.
struct StackedExperts {
  std::string_view official, transformers;  // below `layers.N.`
  size_t first, count;
};
extern const std::span<const StackedExperts> kStackedExperts;

// Other spellings of transformers that were published.
struct Spelling {
  std::string_view found, official;  // below `layers.N.`
};
extern const std::span<const Spelling> kOtherSpellings;

// One weight of one model.
struct WeightRef {
  const WeightRow* row;
  int64_t layer = -1;   // -1: of no layer
  int64_t expert = -1;  // -1: of no routed expert
  int64_t stage = -1;   // -1: of no draft module; then `layer` is L + stage

  std::string Block() const;  // official, with a dot: "layers.3.", "mtp.0."
  bool in_files() const { return !row->official.empty(); }
  std::string Stem() const;  // official; of matrices of any format without `.weight`
  std::string Name() const;  // official, whole
};

}  // namespace dsv4::deepseek_v4
