// Divides a model among ranks (docs/several-gpus.md): heads with their output groups, the width of every expert, and
// the rows of the output matrix. Everything else, including the KV rows, is the same on every rank.
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

// The share of one of `count` ranks. With fixed_cuts, a multiple of `count`, the layers are divided into fixed_cuts
// slices, as if for that many ranks. Rank r holds num_slices() consecutive ones. Weights outside the layers are then
// whole on every rank. So no sum depends on `count`.
struct Sharding {
  int rank = 0;
  int count = 1;
  int fixed_cuts = 0;  // number of slices; 0: one per rank
  int slice = 0;       // index among the rank's slices

  int cuts() const { return fixed_cuts > 0 ? fixed_cuts : count; }
  int num_slices() const { return cuts() / count; }
  // The same slice of a weight, as the share of one of cuts() ranks.
  Sharding Of(const WeightRef& ref) const {
    if (fixed_cuts == 0) return *this;
    return ref.layer < 0 ? Sharding{} : Sharding{.rank = rank * num_slices() + slice, .count = cuts()};
  }
};

// Decode divides heads among ranks; prefill divides tokens (layers/attention.h). A rank keeps the head weights twice:
// its slice for decode, all heads for prefill.
constexpr bool IsKeptWhole(WeightCut cut) {
  return cut == WeightCut::kHeads || cut == WeightCut::kGroups || cut == WeightCut::kGroupColumns;
}
// The field of the weight that `ref` names, and the field of its whole.
WeightField FieldOf(const WeightRef& ref, Weights& w);
WeightField WholeOf(const WeightRef& ref, Weights& w);

// The kind of a rank's slice of a weight: rows or columns [rank * size / count, (rank + 1) * size / count), or all of
// it. Heads and groups of heads are contiguous, so their slices are also rows and columns.
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

// For a rank with slices. IsSliced: whether each slice has its own part of the weight. TimesInRank: how many such parts
// the rank has.
inline bool IsSliced(const WeightRef& ref) { return ref.layer >= 0 && SliceOf(ref.row->cut) != Slice::kWhole; }
inline int TimesInRank(const WeightRef& ref, int num_slices) { return IsSliced(ref) ? num_slices : 1; }

// Whether `count` ranks can divide the model. An error names the field, its value and the counts that work.
Status CheckSharding(const Config& config, int count);
// The same for the weights in their formats. A slice must be whole tiles (16 rows, 16 columns) and whole blocks of
// scales, or be within one block. An error names the tensor.
Status CheckSharding(const Config& config, const Weights& weights, int count);

// The config of a rank: its heads, groups and width, or one slice's. V stays whole, although with several ranks a
// rank's output matrix has V / count rows.
Config ShardConfig(const Config& config, const Sharding& sharding);

// The largest number of ranks that can divide the model: 8, 4, 2 or 1.
int MostRanks(const std::function<Status(int count)>& check);

// Returns a rank's slice of weights in host memory, in the layout of the file. Requires: CheckSharding has passed. Rows
// are views. Columns are copied by `pool` (null: this thread). All slices together are the whole weight, bit for bit.
// `storage` keeps the storage of `whole` alive. kResourceExhausted: no memory for the copies.
Result<Weights> ShardWeights(const Weights& whole, const Sharding& sharding, ThreadPool* pool);

// The shapes of a rank's weights, for its first slice. The pointers only mark weights that exist.
Weights ShardShapes(const Weights& whole, const Sharding& sharding);

// Joins a rank's slices: the first slice's weights, with the layers of all slices in order. Only with fixed_cuts.
Weights JoinSlices(std::vector<Weights> slices);

// Slices of one matrix or vector, in any memory. Rows are a view.
QuantTensor RowSlice(const QuantTensor& m, const Sharding& sharding);
Tensor VectorSlice(const Tensor& t, const Sharding& sharding);
// A copy of a part of each row of `from`.
struct ColumnCopy {
  const uint8_t* from;
  uint8_t* to;
  int64_t rows, from_stride, bytes;
};
// The slice of columns, valid after the caller has made `copies` (appends one or two): CodeSliceBytes at `codes`,
// ScaleSliceBytes at `scales`.
QuantTensor ColumnSlice(const QuantTensor& m, const Sharding& sharding, uint8_t* codes, uint8_t* scales,
                        std::vector<ColumnCopy>* copies);
int64_t CodeSliceBytes(const QuantTensor& m, int count);
int64_t ScaleSliceBytes(const QuantTensor& m, int count);

// The bytes that ShardWeights copies.
int64_t ShardCopyBytes(const Weights& whole, const Sharding& sharding);
// The bytes of the files that one of `count` ranks needs.
int64_t ShardFileBytes(const Weights& whole, int count);

}  // namespace dsv4::deepseek_v4
