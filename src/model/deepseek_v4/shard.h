// Cutting a model among ranks (docs/multigpu.md): heads with their output groups, the width of every expert, the rows
// of the output matrix. Everything else, the KV rows included, is the same on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "dsv4/status.h"
#include "model/deepseek_v4/config.h"
#include "model/deepseek_v4/schema.h"
#include "model/deepseek_v4/weights.h"

namespace dsv4::deepseek_v4 {

struct Sharding {
  int rank = 0;
  int count = 1;
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
    case WeightCut::kWhole: return Slice::kWhole;
    case WeightCut::kHeads:
    case WeightCut::kGroups:
    case WeightCut::kRows: return Slice::kRows;
    case WeightCut::kGroupColumns:
    case WeightCut::kColumns: return Slice::kColumns;
  }
  return Slice::kWhole;
}

// Whether `count` ranks can divide such a model; the error names the field, its number and the counts that work.
Status CheckSharding(const Config& config, int count);
// The same of the weights in their formats: a slice is whole tiles (16 rows, 16 columns) and whole blocks of scales, or
// lies within one. The error names the tensor.
Status CheckSharding(const Config& config, const Weights& weights, int count);

// What a rank computes: its heads, groups and width. V stays whole, though its output matrix has V / count rows.
Config ShardConfig(const Config& config, const Sharding& sharding);

// A rank's slices of weights in host memory, laid out as in the file; CheckSharding has passed. Rows are views; columns
// are copied, by `pool` (null: this thread). Put side by side the slices are the whole, bit for bit. `storage` keeps
// `whole`'s alive. kResourceExhausted: no memory for the copies.
Result<Weights> ShardWeights(const Weights& whole, const Sharding& sharding, ThreadPool* pool);

// The shapes of a rank's weights; their pointers only mark what exists.
Weights ShardShapes(const Weights& whole, int count);

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

// Bytes that ShardWeights copies for one rank.
int64_t ShardCopyBytes(const Weights& whole, int count);
// Bytes in the files that one rank of `count` needs.
int64_t ShardFileBytes(const Weights& whole, int count);

}  // namespace dsv4::deepseek_v4
