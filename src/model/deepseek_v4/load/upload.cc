#include "model/deepseek_v4/load/upload.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/str.h"
#include "io/parallel_reader.h"
#include "model/deepseek_v4/config/gpu_limits.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/visit_weights.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr int64_t kBatchBytes = int64_t{64} << 20;
constexpr int64_t kBatches = 4;      // two are being read, one is copied and packed, one is free for the next
constexpr int64_t kSliceRows = 128;  // slices of a matrix begin at multiples: for FP8's scales and 16-row tiles

bool KeepsRows(const QuantTensor& m, bool keep_rows) { return keep_rows || m.format == WeightFormat::kF32; }

// Bytes on the device.
int64_t CodeBytes(const QuantTensor& m, bool keep_rows) {
  return KeepsRows(m, keep_rows) ? m.rows * m.row_bytes() : PackedCodeBytes(m);
}
int64_t ScaleBytes(const QuantTensor& m, bool keep_rows) { return KeepsRows(m, keep_rows) ? 0 : PackedScaleBytes(m); }

// Bytes in an arena; 0: no matrix.
int64_t UploadedMatrixBytes(const QuantTensor& m, bool keep_rows) {
  return m ? AlignedBytes(CodeBytes(m, keep_rows)) + AlignedBytes(ScaleBytes(m, keep_rows)) : 0;
}
// The largest matrix that is packed for the host.
int64_t LargestOnHost(const Weights& weights, const ExpertPlacement& placement) {
  int64_t bytes = 0;
  VisitNamedWeights(
      weights,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (!KeepsRows(ref.row->kind) && placement.OnHost(ref))
          bytes = std::max(bytes, UploadedMatrixBytes(m, /*keep_rows=*/false));
      },
      [](const WeightRef&, const Tensor&) {});
  return bytes;
}

// The tiles of one rank's part of a matrix. `w` is the part; its first element is element (first_row, first_col) of the
// file's matrix.
struct TilesOfRank {
  size_t rank;
  QuantTensor w;
  int64_t first_row, first_col;
  uint8_t *codes, *scales;
};
// Bytes [begin, end) of a source, copied unchanged.
struct BytesOfRank {
  size_t rank;
  uint8_t* dst;
  int64_t begin, end;
};

// Uploads files to the devices in batches. Reader threads fill pinned host memory, each byte once. One copy sends a
// batch to every device, and kernels there move or pack the parts of the rank. Reading waits for a device only if the
// device is slower.
class Uploader {
 public:
  Uploader(std::span<Device* const> devices, ThreadPool& pool, ParallelReader& reader,
           const std::function<bool(int64_t, int64_t)>& progress, int64_t total)
      : ranks_(devices.size()), reader_(reader), progress_(progress), total_(total) {
    for (size_t r = 0; r < devices.size(); ++r) {
      ranks_[r].device = devices[r];
      devices[r]->Bind();
      ranks_[r].ctx = devices[r]->Context(&pool, false);
    }
  }
  ~Uploader() {
    reader_.Stop();  // stops reads into memory that is about to be freed
    for (const Rank& rank : ranks_) (void)rank.device->Synchronize();
  }

  // packed_bytes: size of the largest matrix for the host.
  Status Prepare(int64_t packed_bytes) {
    constexpr int64_t kBytes = kBatches * kBatchBytes;
    bool ok = host_.Allocate(*ranks_.front().device, kBytes + ParallelReader::kBlock);
    for (Rank& rank : ranks_) {
      rank.device->Bind();
      ok = ok && rank.batches.Allocate(*rank.device, kBytes) && rank.packed.Allocate(*rank.device, packed_bytes);
      if (!ok) {
        return ResourceExhausted(StrCat("no memory for the loader's buffers: ", kBytes,
                                        " bytes of pinned host memory and the same on ", rank.device->place(),
                                        "; close other programs"));
      }
    }
    const auto address = reinterpret_cast<uintptr_t>(host_.data());
    auto* aligned = host_.data() + (ParallelReader::kBlock - address % ParallelReader::kBlock) % ParallelReader::kBlock;
    for (int64_t i = 0; i < kBatches; ++i) batches_[i].host = aligned + i * kBatchBytes;
    return {};
  }

  Status Copy(const uint8_t* src, int64_t bytes, std::span<const BytesOfRank> parts) {
    for (int64_t at = 0; at < bytes; at += kLargest) {
      const int64_t n = std::min(kLargest, bytes - at);
      DSV4_RETURN_IF_ERROR(Room(n));
      const int64_t staged = Stage(src + at, n);
      for (const BytesOfRank& p : parts) {
        const int64_t begin = std::max(at, p.begin), end = std::min(at + n, p.end);
        if (begin < end)
          current().copies.push_back({p.rank, p.dst + (begin - p.begin), staged + (begin - at), end - begin});
      }
    }
    return {};
  }

  // Packs a matrix into tiles, a run of rows at a time. on_host: the tiles are in host memory.
  Status Pack(const QuantTensor& m, std::span<const TilesOfRank> parts, bool on_host) {
    const WeightFormatInfo& f = InfoOf(m.format);
    DSV4_RETURN_IF_ERROR(CheckBecomesTiles(m));
    const int64_t row_bytes = m.row_bytes() + CeilDiv(FileScaleRowBytes(m), std::max<int64_t>(f.block_rows, 1));
    const int64_t fitting = (kLargest / 2) / std::max<int64_t>(row_bytes, 1) / kSliceRows * kSliceRows;
    if (fitting == 0) return Unsupported(StrCat("a matrix of ", m.cols, " columns is too wide for the GPU loader"));
    for (int64_t r = 0; r < m.rows; r += fitting) {
      StagedRows run{.first = r, .rows = std::min(fitting, m.rows - r)};
      const int64_t code_bytes = run.rows * m.row_bytes();
      int64_t scale_bytes = 0;
      const uint8_t* scale_source = m.block_scale;
      if (f.quantised()) {
        run.scale_row_offset = (m.scale_row_offset + r) % f.block_rows;
        scale_bytes = CeilDiv(run.scale_row_offset + run.rows, f.block_rows) * FileScaleRowBytes(m);
        scale_source += (m.scale_row_offset + r) / f.block_rows * FileScaleRowBytes(m);
      }
      DSV4_RETURN_IF_ERROR(Room(code_bytes, scale_bytes));
      run.codes = Stage(m.codes + r * m.row_bytes(), code_bytes);
      if (scale_bytes > 0) run.scales = Stage(scale_source, scale_bytes);
      for (const TilesOfRank& part : parts) AddPack(m, run, part, on_host);
    }
    return {};
  }

  // Sets *read_done to the time at which the last byte was read.
  Status Finish(std::chrono::steady_clock::time_point* read_done) {
    DSV4_RETURN_IF_ERROR(reader_.Wait(number_));
    *read_done = std::chrono::steady_clock::now();
    while (retired_ <= number_) DSV4_RETURN_IF_ERROR(Retire());
    for (const Rank& rank : ranks_) DSV4_RETURN_IF_ERROR(rank.device->Synchronize());
    return {};
  }

 private:
  // The largest part: with the blocks around it, it fits a batch.
  static constexpr int64_t kLargest = kBatchBytes - 4 * ParallelReader::kBlock;

  struct Rank {
    Device* device = nullptr;
    ExecContext ctx;
    DeviceBuffer batches, packed;
  };
  // Rows [first, first + rows) of a matrix, and the offsets of their bytes in the batch.
  struct StagedRows {
    int64_t first, rows, scale_row_offset = 0, codes = 0, scales = -1;
  };
  struct DeviceCopy {
    size_t rank;
    uint8_t* dst;
    int64_t from, bytes;  // of the batch
  };
  struct Packing {
    size_t rank;
    PackWeightArgs args;
    uint8_t *codes, *scales;  // destination of tiles for the host, which are first packed in Rank::packed
  };
  // One batch: host staging, and the work of every device on the same bytes.
  struct Batch {
    uint8_t* host = nullptr;
    int64_t used = 0;
    int64_t bytes = 0;
    std::vector<int64_t> marks;  // of the ranks' devices
    std::vector<DeviceCopy> copies;
    std::vector<Packing> packs;
  };

  Batch& current() { return batches_[number_ % kBatches]; }
  uint8_t* OnDevice(size_t rank, int64_t number) {
    return ranks_[rank].batches.data() + number % kBatches * kBatchBytes;
  }

  // Adds the rows of `run` that `part` has.
  void AddPack(const QuantTensor& m, const StagedRows& run, const TilesOfRank& part, bool on_host) {
    const int64_t first = std::max(run.first, part.first_row),
                  end = std::min(run.first + run.rows, part.first_row + part.w.rows), skipped = first - run.first;
    if (first >= end) return;
    const WeightFormatInfo& f = InfoOf(m.format);
    const uint8_t* batch = OnDevice(part.rank, number_);
    PackWeightArgs args{.w = part.w, .row_stride = m.row_bytes(), .scale_stride = FileScaleRowBytes(m)};
    args.w.rows = end - first;
    args.w.codes = batch + run.codes + skipped * m.row_bytes() + part.first_col * f.bits / 8;
    if (run.scales >= 0) {
      const int64_t block = part.first_col / f.block_cols * (f.grid() ? SizeOf(m.scale_dtype) : SizeOf(f.scale));
      args.w.scale_row_offset = f.grid() ? run.scale_row_offset + skipped : 0;
      args.w.block_scale = batch + run.scales + block + (f.grid() ? 0 : skipped * FileScaleRowBytes(m));
    }
    const int64_t row_tiles = (first - part.first_row) / kTileRows16;
    args.codes = part.codes + row_tiles * CeilDiv(part.w.cols, kTileCols64) * TileBytes(part.w.format);
    if (part.scales != nullptr) args.block_scale = part.scales + row_tiles * CeilDiv(part.w.cols, kFp8BlockSize) * 4;
    Packing p{part.rank, args, nullptr, nullptr};
    if (on_host) {
      p.codes = std::exchange(p.args.codes, ranks_[part.rank].packed.data());
      if (args.block_scale != nullptr)
        p.scales = std::exchange(p.args.block_scale, p.args.codes + AlignedBytes(PackedCodeBytes(args.w)));
    }
    current().packs.push_back(p);
  }

  // Makes room for parts of these sizes, at any position in a block.
  Status Room(int64_t bytes, int64_t more = 0) {
    const auto slot = [](int64_t n) {
      return CeilDiv(n, ParallelReader::kBlock) * ParallelReader::kBlock + ParallelReader::kBlock;
    };
    return current().used + slot(bytes) + slot(more) > kBatchBytes ? Next() : Status{};
  }

  // Queues the read of `bytes` at `src`. Returns their offset in the batch: 4-byte aligned, as packing kernels require.
  int64_t Stage(const uint8_t* src, int64_t bytes) {
    Batch& b = current();
    FilePart part{.bytes = bytes};
    const int64_t slot = b.used;
    b.bytes += bytes;
    if (reader_.Locate(src, &part) && part.offset % 4 == 0) {
      reader_.Read(number_, part, b.host + slot);
      b.used += ParallelReader::SlotBytes(part);
      return slot + ParallelReader::PadBytes(part);
    }
    reader_.Copy(number_, b.host + slot, src, bytes);
    b.used += CeilDiv(bytes, ParallelReader::kBlock) * ParallelReader::kBlock;
    return slot;
  }

  // Starts the next batch. First finishes the batches that use its memory.
  Status Next() {
    ++number_;
    while (retired_ + 2 <= number_) DSV4_RETURN_IF_ERROR(Retire());
    Batch& b = current();
    for (size_t r = 0; r < b.marks.size(); ++r) DSV4_RETURN_IF_ERROR(ranks_[r].device->Wait(b.marks[r]));
    b.marks.clear();
    b.used = b.bytes = 0;
    b.copies.clear();
    b.packs.clear();
    return {};
  }

  // Hands the oldest batch that is only read to the devices: copies it, then packs it.
  Status Retire() {
    Batch& b = batches_[retired_ % kBatches];
    DSV4_RETURN_IF_ERROR(reader_.Wait(retired_));
    for (size_t r = 0; r < ranks_.size(); ++r) {
      ranks_[r].device->Bind();
      Place(b, r, OnDevice(r, retired_));
      b.marks.push_back(ranks_[r].device->Mark());
    }
    ++retired_;
    done_ += b.bytes;
    return progress_ && !progress_(done_, total_) ? Cancelled("loading was cancelled") : Status{};
  }

  void Place(const Batch& b, size_t r, uint8_t* on_device) {
    Device& device = *ranks_[r].device;
    device.Upload(on_device, b.host, b.used);
    for (const DeviceCopy& c : b.copies) {
      if (c.rank == r) device.CopyWithin(c.dst, on_device + c.from, c.bytes);
    }
    for (const Packing& p : b.packs) {
      if (p.rank != r) continue;
      PackWeight(ranks_[r].ctx, p.args);
      if (p.codes != nullptr) device.CopyWithin(p.codes, p.args.codes, PackedCodeBytes(p.args.w));
      if (p.scales != nullptr) device.CopyWithin(p.scales, p.args.block_scale, PackedScaleBytes(p.args.w));
    }
  }

  std::vector<Rank> ranks_;
  ParallelReader& reader_;
  const std::function<bool(int64_t, int64_t)>& progress_;
  int64_t total_, done_ = 0;
  StagingBuffer host_;
  Batch batches_[kBatches];
  int64_t number_ = 0, retired_ = 0;  // index of the current batch; number of batches handed to the devices
};

// The weights of the ranks on their devices, by name.
class RankedWeights {
 public:
  RankedWeights(std::span<Device* const> devices, const Weights& host, int fixed_cuts) {
    for (size_t r = 0; r < devices.size(); ++r) {
      Sharding s{.rank = static_cast<int>(r), .count = static_cast<int>(devices.size()), .fixed_cuts = fixed_cuts};
      const auto arena = std::make_shared<WeightArena>();
      for (; s.slice < s.num_slices(); ++s.slice) parts_.push_back({s, r, ShardShapes(host, s), arena});
    }
  }

  Status Allocate(std::span<Device* const> devices, const ExpertPlacement& placement) {
    for (const Part& part : parts_) {
      if (part.sharding.slice > 0) continue;
      const size_t r = part.rank;
      devices[r]->Bind();
      const PlacedBytes bytes = UploadedBytes(part.w, placement, part.sharding.num_slices());
      if (part.arena->Allocate(*devices[r], bytes)) continue;
      return ResourceExhausted(StrCat("the weights take ", bytes.device, " bytes on ", devices[r]->place(),
                                      ", which has ", devices[r]->free_bytes(), " free",
                                      bytes.host > 0 ? StrCat(", and ", bytes.host, " bytes of pinned memory") : "",
                                      "; close other programs or use --device cpu"));
    }
    return {};
  }

  Status Matrix(Uploader& up, const WeightRef& ref, const QuantTensor& m, bool on_host) {
    const bool keep_rows = KeepsRows(m, KeepsRows(ref.row->kind));
    std::vector<TilesOfRank> tiles;
    std::vector<BytesOfRank> rows;
    const auto place = [&](Part& part, QuantTensor& mine, Slice slice) {
      const Sharding s = part.sharding.Of(ref);
      const size_t r = part.rank;
      uint8_t* codes = part.arena->Take(CodeBytes(mine, keep_rows), on_host);
      if (keep_rows) {
        DSV4_CHECK(slice != Slice::kColumns, ref.Name());
        const int64_t bytes = mine.rows * mine.row_bytes(), first = slice == Slice::kRows ? s.rank * bytes : 0;
        rows.push_back({r, codes, first, first + bytes});
        mine.codes = codes;
        return;
      }
      const int64_t scale_bytes = ScaleBytes(mine, keep_rows);
      uint8_t* scales = scale_bytes > 0 ? part.arena->Take(scale_bytes, on_host) : nullptr;
      tiles.push_back({r, mine, slice == Slice::kRows ? s.rank * mine.rows : 0,
                       slice == Slice::kColumns ? s.rank * mine.cols : 0, codes, scales});
      mine = PackedView({.w = mine, .codes = codes, .block_scale = scales});
    };
    ForEachPlace(ref, [&](Part& part, const WeightField& field, Slice slice) { place(part, *field.matrix, slice); });
    return keep_rows ? up.Copy(m.codes, m.rows * m.row_bytes(), rows) : up.Pack(m, tiles, on_host);
  }

  // Sets the format of an expert that stays on the disk.
  Status OnDisk(const WeightRef& ref, const QuantTensor& m) {
    ForEachPlace(ref, [&](Part&, const WeightField& field, Slice) {
      field.matrix->codes = field.matrix->block_scale = nullptr;
      if (!KeepsRows(m, KeepsRows(ref.row->kind))) *field.matrix = PackedView({.w = *field.matrix});
    });
    return CheckBecomesTiles(m);
  }

  Status Vector(Uploader& up, const WeightRef& ref, const Tensor& t) {
    std::vector<BytesOfRank> parts;
    ForEachPlace(ref, [&](Part& part, const WeightField& field, Slice slice) {
      Tensor& mine = *field.vector;
      const int64_t bytes = mine.num_bytes(), first = slice == Slice::kRows ? part.sharding.Of(ref).rank * bytes : 0;
      mine.data = part.arena->Take(bytes);
      parts.push_back({part.rank, static_cast<uint8_t*>(mine.data), first, first + bytes});
    });
    return up.Copy(static_cast<const uint8_t*>(t.data), t.num_bytes(), parts);
  }

  const Weights& first() const { return parts_.front().w; }

  // Uploads the experts' tables, whose addresses are known only now. The sources stay valid until the upload has
  // finished.
  Status Tables(Uploader& up) {
    for (Part& part : parts_) {
      for (LayerWeights& layer : part.w.layers) {
        tables_.push_back(ExpertTable(layer.moe));
        const int64_t n = ExpertTableBytes(layer.moe);
        uint8_t* table = part.arena->Take(n);
        const BytesOfRank bytes{part.rank, table, 0, n};
        DSV4_RETURN_IF_ERROR(up.Copy(reinterpret_cast<const uint8_t*>(tables_.back().data()), n, {&bytes, 1}));
        layer.moe.table = reinterpret_cast<const ExpertWeights*>(table);
      }
    }
    return {};
  }

  std::vector<Weights> Take() {
    std::vector<Weights> all, slices;
    for (Part& part : parts_) {
      part.w.storage = std::move(part.arena);
      slices.push_back(std::move(part.w));
      if (part.sharding.slice + 1 < part.sharding.num_slices()) continue;
      all.push_back(part.sharding.fixed_cuts > 0 ? JoinSlices(std::move(slices)) : std::move(slices.front()));
      slices.clear();
    }
    return all;
  }

 private:
  // A rank's weights, or one of its slices. Slices of a rank share an arena; whole weights belong to the first slice.
  struct Part {
    Sharding sharding;
    size_t rank;
    Weights w;
    std::shared_ptr<WeightArena> arena;
  };

  // Calls place(part, field, slice) for every part that has the weight or a slice of it.
  template <typename Place>
  void ForEachPlace(const WeightRef& ref, const Place& place) {
    for (Part& part : parts_) {
      const bool cut = part.sharding.Of(ref).count > 1, first = part.sharding.slice == 0;
      const Slice slice = cut ? SliceOf(ref.row->cut) : Slice::kWhole;
      if (first || slice != Slice::kWhole) place(part, FieldOf(ref, part.w), slice);
      if (first && cut && IsKeptWhole(ref.row->cut)) place(part, WholeOf(ref, part.w), Slice::kWhole);
    }
  }

  std::vector<Part> parts_;  // ordered by rank, then by slice
  std::vector<std::vector<ExpertWeights>> tables_;
};

}  // namespace

PlacedBytes UploadedBytes(const Weights& weights, const ExpertPlacement& placement, int num_slices) {
  PlacedBytes bytes;
  VisitNamedWeights(
      weights,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (placement.OnDisk(ref)) return;
        (placement.OnHost(ref) ? bytes.host : bytes.device) += TimesInRank(ref, num_slices) *
                                                               UploadedMatrixBytes(m, KeepsRows(ref.row->kind));
      },
      [&](const WeightRef& ref, const Tensor& t) {
        if (t) bytes.device += TimesInRank(ref, num_slices) * AlignedBytes(t.num_bytes());
      });
  for (const LayerWeights& layer : weights.layers) {
    bytes.device += num_slices * AlignedBytes(ExpertTableBytes(layer.moe));
  }
  return bytes;
}

std::vector<int64_t> UploadedExpertBytes(const Weights& weights) {
  return BytesOfExperts(weights, [](const QuantTensor& m) { return UploadedMatrixBytes(m, /*keep_rows=*/false); });
}

PlacedBytes UploadStagingBytes(const Weights& weights, const ExpertPlacement& placement) {
  return {.device = kBatches * kBatchBytes + LargestOnHost(weights, placement), .host = kBatches * kBatchBytes};
}

Result<std::vector<Weights>> UploadRanks(std::span<Device* const> devices, ThreadPool& pool, const Weights& host,
                                         const ExpertPlacement& placement, const TensorSource* source,
                                         const std::function<bool(int64_t, int64_t)>& progress, LoadTimes* times,
                                         int fixed_cuts) {
  auto seconds = [last = std::chrono::steady_clock::now()](auto now) mutable {
    return std::chrono::duration<double>(now - std::exchange(last, now)).count();
  };
  int64_t total = 0;
  VisitNamedWeights(
      host,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (m && !placement.OnDisk(ref))
          total += m.rows * (m.row_bytes() + (InfoOf(m.format).grid() ? 0 : FileScaleRowBytes(m)));
      },
      [&](const WeightRef&, const Tensor& t) { total += t ? t.num_bytes() : 0; });

  RankedWeights ranks(devices, host, fixed_cuts);
  DSV4_RETURN_IF_ERROR(ranks.Allocate(devices, placement));
  ParallelReader reader(source != nullptr ? source->maps() : std::vector<std::shared_ptr<const MappedFile>>{});
  Uploader up(devices, pool, reader, progress, total);
  DSV4_RETURN_IF_ERROR(up.Prepare(LargestOnHost(ranks.first(), placement)));
  const double allocate = seconds(std::chrono::steady_clock::now());
  Status status;
  VisitNamedWeights(
      host,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (!m || !status.ok()) return;
        status = placement.OnDisk(ref) ? ranks.OnDisk(ref, m) : ranks.Matrix(up, ref, m, placement.OnHost(ref));
      },
      [&](const WeightRef& ref, const Tensor& t) {
        if (t && status.ok()) status = ranks.Vector(up, ref, t);
      });
  DSV4_RETURN_IF_ERROR(status);
  DSV4_RETURN_IF_ERROR(ranks.Tables(up));
  std::chrono::steady_clock::time_point read_done;
  DSV4_RETURN_IF_ERROR(up.Finish(&read_done));
  if (times != nullptr) {
    times->allocate = allocate;
    times->read = seconds(read_done);
    times->pack = seconds(std::chrono::steady_clock::now());
    times->bytes = reader.file_bytes();
    times->cached_bytes = reader.cached_bytes();
    times->direct = reader.direct();
  }
  return ranks.Take();
}

Result<Weights> UploadWeights(Device& device, ThreadPool& pool, const Weights& host, const ExpertPlacement& placement,
                              const TensorSource* source, const std::function<bool(int64_t, int64_t)>& progress,
                              LoadTimes* times) {
  Device* const one = &device;
  DSV4_ASSIGN_OR_RETURN(std::vector<Weights> ranks,
                        UploadRanks({&one, 1}, pool, host, placement, source, progress, times, /*fixed_cuts=*/0));
  return std::move(ranks.front());
}

}  // namespace dsv4::deepseek_v4
