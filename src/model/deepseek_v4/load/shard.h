// Cutting a model among ranks (docs/several-gpus.md): heads with their output groups, the width of every expert, the
// rows of the output matrix. Everything else, the KV rows included, is the same on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "dsv4/status.h"
#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/schema/schema.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

// One of `count` ranks' part. With fixed_cuts, a multiple of `count`, the layers are cut in so many slices, each as if
// it were the part of one of so many ranks; rank r holds num_slices() of them, one behind the other. What is outside
// the layers is then whole on every rank. So nothing that is summed depends on `count`.
struct Sharding {
  int rank = 0;
  int count = 1;
  int fixed_cuts = 0;  // 0: one slice a rank
  int slice = 0;       // which of the rank's

  int cuts() const { return fixed_cuts > 0 ? fixed_cuts : count; }
  int num_slices() const { return cuts() / count; }
  // The same slice of a weight, as one of plain ranks.
  Sharding Of(const WeightRef& ref) const {
    if (fixed_cuts == 0) return *this;
    return ref.layer < 0 ? Sharding{} : Sharding{.rank = rank * num_slices() + slice, .count = cuts()};
  }
};

// Heads are cut for decode rows, tokens for prompts (layers/attention.h): what belongs to heads a rank has twice, cut
// and whole.
constexpr bool IsKeptWhole(WeightCut cut) {
  return cut == WeightCut::kHeads || cut == WeightCut::kGroups || cut == WeightCut::kGroupColumns;
}
// Where the weight that `ref` names lies, and where the whole of it.
WeightField FieldOf(const WeightRef& ref, Weights& w);
WeightField WholeOf(const WeightRef& ref, Weights& w);

// Which part of a weight is a rank's: the rows or columns [rank * size / count, (rank + 1) * size / count), or all of
// it. Heads and groups of them lie one behind the other, so theirs are rows and columns, too.
enum class Slice : uint8_t { kWhole, kRows, kColumns };
constexpr Slice SliceOf(WeightCut cut) {
  switch (cut) {
    case WeightCut::kWhole:
      return Slice::kWhole;
    case WeightCut::kHeads:
    case WeightCut::kGroups:
    case WeightCut::kRows:
      return Slice::kRows;
    case WeightCut::kGroupColumns:
    case WeightCut::kColumns:
      return Slice::kColumns;
  }
  return Slice::kWhole;
}

// Of a rank in slices: whether each has a part of the weight; how often the rank has what its first slice has.
inline bool IsSliced(const WeightRef& ref) { return ref.layer >= 0 && SliceOf(ref.row->cut) != Slice::kWhole; }
inline int TimesInRank(const WeightRef& ref, int num_slices) { return IsSliced(ref) ? num_slices : 1; }

// Whether `count` ranks can divide such a model; the error names the field, its number and the counts that work.
Status CheckSharding(const Config& config, int count);
// The same of the weights in their formats: a slice is whole tiles (16 rows, 16 columns) and whole blocks of scales, or
// lies within one. The error names the tensor.
Status CheckSharding(const Config& config, const Weights& weights, int count);

// What a rank computes: its heads, groups and width, or those of a slice. V stays whole, though the output matrix of
// one of several ranks has V / count rows.
Config ShardConfig(const Config& config, const Sharding& sharding);

// The most ranks that can divide it: 8, 4, 2 or 1.
int MostRanks(const std::function<Status(int count)>& check);

// A rank's slice of weights in host memory, laid out as in the file; CheckSharding has passed. Rows are views; columns
// are copied, by `pool` (null: this thread). Put side by side all slices are the whole, bit for bit. `storage` keeps
// `whole`'s alive. kResourceExhausted: no memory for the copies.
Result<Weights> ShardWeights(const Weights& whole, const Sharding& sharding, ThreadPool* pool);

// The shapes of a rank's weights, of its first slice; their pointers only mark what exists.
Weights ShardShapes(const Weights& whole, const Sharding& sharding);

// A rank's slices as one: the first's weights, in whose layers those of all lie in order. Of fixed_cuts only.
Weights JoinSlices(std::vector<Weights> slices);

// Slices of one matrix or vector, in whatever memory it lies. Rows are a view.
QuantTensor RowSlice(const QuantTensor& m, const Sharding& sharding);
Tensor VectorSlice(const Tensor& t, const Sharding& sharding);
// Rows of `from`, a part of each.
struct ColumnCopy {
  const uint8_t* from;
  uint8_t* to;
  int64_t rows, from_stride, bytes;
};
// Columns, once `copies` (one or two more) are made: CodeSliceBytes at `codes`, ScaleSliceBytes at `scales`.
QuantTensor ColumnSlice(const QuantTensor& m, const Sharding& sharding, uint8_t* codes, uint8_t* scales,
                        std::vector<ColumnCopy>* copies);
int64_t CodeSliceBytes(const QuantTensor& m, int count);
int64_t ScaleSliceBytes(const QuantTensor& m, int count);

// Bytes that ShardWeights copies.
int64_t ShardCopyBytes(const Weights& whole, const Sharding& sharding);
// Bytes in the files that one rank of `count` needs.
int64_t ShardFileBytes(const Weights& whole, int count);

}  // namespace dsv4::deepseek_v4
