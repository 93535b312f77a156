#include "model/deepseek_v4/load/shard.h"

#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/str.h"
#include "device/exchange.h"
#include "model/deepseek_v4/schema/visit_weights.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr int64_t kTileUnit = 16;  // rows and columns of a tensor core tile

// Columns that share one scale; 1 if there are no scales.
int64_t ScaleColumns(WeightFormat f) { return InfoOf(f).quantised() ? InfoOf(f).block_cols : 1; }

// The numbers of ranks that divide all of `sizes`, as text: "1", "1 or 2", "1, 2, 4 or 8".
std::string CountsThatDivide(std::initializer_list<int64_t> sizes) {
  std::vector<int> counts;
  for (const int count : {1, 2, 4, 8}) {
    bool divides = true;
    for (const int64_t size : sizes) divides = divides && size % count == 0;
    if (divides) counts.push_back(count);
  }
  std::string s;
  for (size_t i = 0; i < counts.size(); ++i)
    s += StrCat(i == 0 ? "" : i + 1 == counts.size() ? " or " : ", ", counts[i]);
  return s;
}

Status CheckSlice(const std::string& name, const QuantTensor& m, Slice slice_of, int64_t count) {
  if (!m || slice_of == Slice::kWhole) return {};
  const int64_t size = slice_of == Slice::kRows ? m.rows : m.cols, slice = size / count;
  const char* what = slice_of == Slice::kRows ? "rows" : "columns";
  if (size % count != 0 || slice % kTileUnit != 0) {
    return Unsupported(StrCat(name, ": ", size, " ", what, " cannot be divided among ", count,
                              " ranks in multiples of ", kTileUnit, "; use fewer ranks"));
  }
  const int64_t block = slice_of == Slice::kRows ? 1 : ScaleColumns(m.format);
  if (slice % block != 0 && block % slice != 0) {
    return Unsupported(StrCat(name, " (", NameOf(m.format), "): a rank's ", slice, " of ", size,
                              " columns split blocks of ", block, " with a common scale; use fewer ranks"));
  }
  if (slice % block != 0 && m.format != WeightFormat::kFp8Block) {
    return Unsupported(StrCat(name, " (", NameOf(m.format), "): a rank's ", slice, " columns are fewer than the ",
                              block, " that share a scale; use fewer ranks"));
  }
  return {};
}

QuantTensor ColumnShape(const QuantTensor& m, int64_t count) {
  QuantTensor slice = m;
  slice.cols = m.cols / count;
  // Tight tiles have one exponent per 32 columns. A slice of NVFP4 may end after 16 of them.
  if (IsTight(m.format) && slice.cols % kMxfp4BlockSize != 0) slice.format = FormatOfRows(m.format);
  return slice;
}

// Rows of scales in the file; for an FP8 matrix rows of the grid.
int64_t ScaleRows(const QuantTensor& m) {
  return m.format == WeightFormat::kFp8Block ? CeilDiv(m.scale_row_offset + m.rows, kFp8BlockSize)
         : m.quantised()                     ? m.rows
                                             : 0;
}
}  // namespace

WeightField FieldOf(const WeightRef& ref, Weights& w) {
  WeightOwner owner{.model = &w};
  if (ref.layer >= 0) owner.layer = &w.layers[static_cast<size_t>(ref.layer)];
  if (ref.expert >= 0) owner.expert = &owner.layer->moe.experts[static_cast<size_t>(ref.expert)];
  return ref.row->field(owner);
}

WeightField WholeOf(const WeightRef& ref, Weights& w) {
  DSV4_CHECK(IsKeptWhole(ref.row->cut) && ref.layer >= 0);
  AttentionWeights& a = w.layers[static_cast<size_t>(ref.layer)].attn;
  const WeightField cut = FieldOf(ref, w);
  if (cut.matrix == &a.q_b) return a.whole.q_b;
  if (cut.matrix == &a.o_a) return a.whole.o_a;
  if (cut.matrix == &a.o_b) return a.whole.o_b;
  DSV4_CHECK(cut.vector == &a.sink);
  return a.whole.sink;
}

QuantTensor RowSlice(const QuantTensor& m, const Sharding& s) {
  QuantTensor slice = m;
  slice.rows = m.rows / s.count;
  const int64_t first = s.rank * slice.rows;
  slice.codes += first * m.row_bytes();
  if (m.format == WeightFormat::kFp8Block) {
    const int64_t row = m.scale_row_offset + first;
    slice.block_scale += row / kFp8BlockSize * FileScaleRowBytes(m);
    slice.scale_row_offset = row % kFp8BlockSize;
  } else if (m.quantised()) {
    slice.block_scale += first * FileScaleRowBytes(m);
  }
  return slice;
}

Tensor VectorSlice(const Tensor& t, const Sharding& s) {
  const int64_t n = t.dim(0) / s.count;
  return {static_cast<uint8_t*>(t.data) + s.rank * n * SizeOf(t.dtype), t.dtype, {n}};
}

int64_t CodeSliceBytes(const QuantTensor& m, int count) { return m.rows * ColumnShape(m, count).row_bytes(); }
int64_t ScaleSliceBytes(const QuantTensor& m, int count) {
  return ScaleRows(m) * FileScaleRowBytes(ColumnShape(m, count));
}

QuantTensor ColumnSlice(const QuantTensor& m, const Sharding& s, uint8_t* codes, uint8_t* scales,
                        std::vector<ColumnCopy>* copies) {
  QuantTensor slice = ColumnShape(m, s.count);
  const int64_t code_bytes = slice.row_bytes(), scale_rows = ScaleRows(m);
  copies->push_back({m.codes + s.rank * code_bytes, codes, m.rows, m.row_bytes(), code_bytes});
  slice.codes = codes;
  if (scale_rows == 0) return slice;
  // A slice smaller than an FP8 block has that block's scale.
  const int64_t first = s.rank * slice.cols / ScaleColumns(m.format);
  const int64_t size = m.format == WeightFormat::kFp8Block ? SizeOf(m.scale_dtype) : 1;
  copies->push_back({m.block_scale + first * size, scales, scale_rows, FileScaleRowBytes(m), FileScaleRowBytes(slice)});
  slice.block_scale = scales;
  return slice;
}

namespace {

// Call before anything is divided.
void KeepWhole(Weights& w) {
  for (LayerWeights& layer : w.layers)
    layer.attn.whole = {layer.attn.q_b, layer.attn.sink, layer.attn.o_a, layer.attn.o_b};
}

}  // namespace

Weights ShardShapes(const Weights& whole, const Sharding& s) {
  Weights mine = whole;
  if (s.cuts() == 1) return mine;
  KeepWhole(mine);
  VisitNamedWeights(
      mine,
      [&](const WeightRef& ref, QuantTensor& m) {
        if (!m) return;
        const Slice cut = SliceOf(ref.row->cut);
        if (cut == Slice::kColumns) m = ColumnShape(m, s.Of(ref).count);
        if (cut == Slice::kRows) m.rows /= s.Of(ref).count;
      },
      [&](const WeightRef& ref, Tensor& t) {
        if (t && SliceOf(ref.row->cut) == Slice::kRows) t = {t.data, t.dtype, {t.dim(0) / s.Of(ref).count}};
      });
  return mine;
}

Weights JoinSlices(std::vector<Weights> slices) {
  Weights joined = slices.front();
  for (size_t l = 0; l < joined.layers.size(); ++l) {
    LayerWeights& layer = joined.layers[l];
    for (Weights& slice : slices) {
      const AttentionWeights& a = slice.layers[l].attn;
      MoeWeights& m = slice.layers[l].moe;
      layer.attn.slices.push_back({a.q_b, a.sink, a.o_a, a.o_b});
      layer.moe.slices.push_back({std::move(m.experts), m.table, m.shared});
    }
  }
  auto storages = std::make_shared<std::vector<std::shared_ptr<const void>>>();
  for (Weights& slice : slices) storages->push_back(std::move(slice.storage));
  joined.storage = std::move(storages);
  return joined;
}

int MostRanks(const std::function<Status(int count)>& check) {
  for (const int count : {8, 4, 2}) {
    if (check(count).ok()) return count;
  }
  return 1;
}

Status CheckSharding(const Config& c, int count) {
  if (!IsRankCount(count)) return InvalidArgument(StrCat(count, " ranks: a model is divided among 1, 2, 4 or 8"));
  const std::string counts = CountsThatDivide({c.o_groups, c.moe_intermediate, c.vocab_size});
  const auto refuse = [&](const char* field, int64_t size, const char* what) {
    return Unsupported(
        StrCat(field, " ", size, ": ", what, " cannot be divided among ", count, " ranks; use ", counts));
  };
  if (c.o_groups % count != 0) {
    return Unsupported(StrCat("o_groups ", c.o_groups, ": ", c.num_heads, " heads in ", c.o_groups,
                              " groups cannot be divided among ", count, " ranks; use ", counts));
  }
  if (c.moe_intermediate % count != 0) return refuse("moe_intermediate_size", c.moe_intermediate, "the experts' width");
  if (c.vocab_size % count != 0) return refuse("vocab_size", c.vocab_size, "the output matrix");
  return {};
}

Status CheckSharding(const Config& config, const Weights& weights, int count) {
  DSV4_RETURN_IF_ERROR(CheckSharding(config, count));
  if (count == 1) return {};
  Status status;
  VisitNamedWeights(
      weights,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (!status.ok() || SliceOf(ref.row->cut) == Slice::kWhole) return;
        status = CheckSlice(ref.Name(), m, SliceOf(ref.row->cut), count);
      },
      [](const WeightRef&, const Tensor&) {});
  return status;
}

Config ShardConfig(const Config& config, const Sharding& s) {
  Config mine = config;
  mine.num_heads /= s.cuts();
  mine.o_groups /= s.cuts();
  mine.moe_intermediate /= s.cuts();
  mine.num_ranks = s.count;
  mine.fixed_cuts = s.fixed_cuts;
  return mine;
}

int64_t ShardCopyBytes(const Weights& whole, const Sharding& s) {
  const int count = s.cuts();
  int64_t bytes = 0;
  VisitNamedWeights(
      whole,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (m && SliceOf(ref.row->cut) == Slice::kColumns)
          bytes += CodeSliceBytes(m, count) + ScaleSliceBytes(m, count);
      },
      [](const WeightRef&, const Tensor&) {});
  return count == 1 ? 0 : bytes;
}

int64_t ShardFileBytes(const Weights& whole, int count) {
  int64_t bytes = 0;
  VisitNamedWeights(
      whole,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (!m) return;
        const Slice cut = SliceOf(ref.row->cut);
        const bool is_cut = !IsKeptWhole(ref.row->cut);
        QuantTensor slice = is_cut && cut == Slice::kColumns ? ColumnShape(m, count) : m;
        if (is_cut && cut == Slice::kRows) slice.rows /= count;
        bytes += FileBytes(slice);
      },
      [&](const WeightRef& ref, const Tensor& t) {
        if (t && ref.in_files()) bytes += t.num_bytes() / (SliceOf(ref.row->cut) == Slice::kRows ? count : 1);
      });
  return bytes;
}

Result<Weights> ShardWeights(const Weights& whole, const Sharding& s, ThreadPool* pool) {
  Weights mine = whole;
  if (s.cuts() == 1) return mine;
  KeepWhole(mine);
  struct Owner {
    std::unique_ptr<uint8_t[]> columns;
    std::shared_ptr<const void> whole;
  };
  auto owner = std::make_shared<Owner>();
  owner->whole = whole.storage;
  const int64_t bytes = ShardCopyBytes(whole, s);
  owner->columns.reset(new (std::nothrow) uint8_t[static_cast<size_t>(bytes)]);
  if (owner->columns == nullptr)
    return ResourceExhausted(StrCat("no memory for a rank's slices, ", bytes, " bytes; use fewer ranks"));

  uint8_t* next = owner->columns.get();
  std::vector<ColumnCopy> copies;
  const auto columns = [&](const QuantTensor& m, const Sharding& of) {
    uint8_t* codes = std::exchange(next, next + CodeSliceBytes(m, of.count));
    return ColumnSlice(m, of, codes, std::exchange(next, next + ScaleSliceBytes(m, of.count)), &copies);
  };
  VisitNamedWeights(
      mine,
      [&](const WeightRef& ref, QuantTensor& m) {
        if (!m) return;
        const Slice cut = SliceOf(ref.row->cut);
        if (cut == Slice::kRows) m = RowSlice(m, s.Of(ref));
        if (cut == Slice::kColumns) m = columns(m, s.Of(ref));
      },
      [&](const WeightRef& ref, Tensor& t) {
        if (t && SliceOf(ref.row->cut) == Slice::kRows) t = VectorSlice(t, s.Of(ref));
      });
  ParallelFor(pool, static_cast<int64_t>(copies.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const ColumnCopy& c = copies[static_cast<size_t>(i)];
      for (int64_t r = 0; r < c.rows; ++r)
        std::memcpy(c.to + r * c.bytes, c.from + r * c.from_stride, static_cast<size_t>(c.bytes));
    }
  });
  mine.storage = std::move(owner);
  return mine;
}

}  // namespace dsv4::deepseek_v4
