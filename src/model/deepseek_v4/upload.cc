#include "model/deepseek_v4/upload.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/str.h"
#include "io/parallel_reader.h"
#include "model/deepseek_v4/visit_weights.h"
#include "model/deepseek_v4/weight_arena.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr int64_t kBatchBytes = int64_t{64} << 20;
constexpr int64_t kBatches = 4;      // two are being read, one copied and packed, one is free for the next
constexpr int64_t kSliceRows = 128;               // slices of a matrix begin at multiples: FP8's scales, 16-row tiles

bool KeepsRows(const QuantTensor& m, bool keep_rows) { return keep_rows || m.format == WeightFormat::kF32; }

// Bytes on the device.
int64_t CodeBytes(const QuantTensor& m, bool keep_rows) {
  return KeepsRows(m, keep_rows) ? m.rows * m.row_bytes() : PackedCodeBytes(m);
}
int64_t ScaleBytes(const QuantTensor& m, bool keep_rows) { return KeepsRows(m, keep_rows) ? 0 : PackedScaleBytes(m); }

// In an arena; 0 where there is none.
int64_t UploadedMatrixBytes(const QuantTensor& m, bool keep_rows) {
  return m ? AlignedBytes(CodeBytes(m, keep_rows)) + AlignedBytes(ScaleBytes(m, keep_rows)) : 0;
}
// Of those that are packed.
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

// Files to the device in batches: reader threads fill pinned memory of the host, one copy takes a batch to the device,
// kernels there move its parts to their places or pack them. Reading never waits for the device unless it is slower.
class Uploader {
 public:
  Uploader(Device& device, ThreadPool& pool, ParallelReader& reader,
           const std::function<bool(int64_t, int64_t)>& progress, int64_t total)
      : device_(device), ctx_(device.Context(&pool, false)), reader_(reader), progress_(progress), total_(total) {}
  ~Uploader() {
    reader_.Stop();  // nothing is read into memory that is about to go
    (void)device_.Synchronize();
    if (host_ != nullptr) device_.FreeStaging(host_);
  }

  // packed_bytes: of the largest matrix that goes to the host.
  Status Prepare(int64_t packed_bytes) {
    constexpr int64_t kBytes = kBatches * kBatchBytes;
    host_ = device_.AllocateStaging(kBytes + ParallelReader::kBlock);
    if (host_ == nullptr || !on_device_.Allocate(device_, kBytes) || !packed_.Allocate(device_, packed_bytes)) {
      return ResourceExhausted(StrCat("no memory for the loader's buffers, ", kBytes,
                                      " bytes pinned on the host and as many on ", device_.name(),
                                      "; free some memory"));
    }
    const auto address = reinterpret_cast<uintptr_t>(host_);
    auto* aligned = static_cast<uint8_t*>(host_) +
                    (ParallelReader::kBlock - address % ParallelReader::kBlock) % ParallelReader::kBlock;
    for (int64_t i = 0; i < kBatches; ++i) {
      batches_[i].host = aligned + i * kBatchBytes;
      batches_[i].device = on_device_.data() + i * kBatchBytes;
    }
    return {};
  }

  // Bytes as they are.
  Status Copy(uint8_t* dst, const uint8_t* src, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kLargest) {
      const int64_t n = std::min(kLargest, bytes - at);
      DSV4_RETURN_IF_ERROR(Room(n));
      const uint8_t* staged = Stage(src + at, n);
      current().copies.push_back({dst + at, staged, n});
    }
    return {};
  }

  // A matrix as tiles at `codes` and `scales`, a slice of rows at a time; on_host: those are the host's.
  Status Pack(const QuantTensor& m, uint8_t* codes, uint8_t* scales, bool on_host) {
    const WeightFormatInfo& f = InfoOf(m.format);
    if (f.grid() && m.scale_row_offset % kTileRows16 != 0) {
      return Unsupported(StrCat("an ", f.family, " matrix begins at row ", m.scale_row_offset,
                                " of its scale grid's tensor; on a GPU "
                                "that must be a multiple of ",
                                kTileRows16, "; use --device cpu"));
    }
    const int64_t row_bytes = m.row_bytes() + CeilDiv(FileScaleRowBytes(m), std::max<int64_t>(f.block_rows, 1));
    const int64_t fitting = (kLargest / 2) / std::max<int64_t>(row_bytes, 1) / kSliceRows * kSliceRows;
    if (fitting == 0) return Unsupported(StrCat("a matrix of ", m.cols, " columns is too wide for the GPU loader"));
    for (int64_t r = 0; r < m.rows; r += fitting) {
      QuantTensor slice = m;
      slice.rows = std::min(fitting, m.rows - r);
      const int64_t code_bytes = slice.rows * m.row_bytes();
      int64_t scale_bytes = 0;
      const uint8_t* scale_source = m.block_scale;
      if (f.quantised()) {
        const int64_t first = (m.scale_row_offset + r) / f.block_rows;
        slice.scale_row_offset = (m.scale_row_offset + r) % f.block_rows;
        scale_bytes = CeilDiv(slice.scale_row_offset + slice.rows, f.block_rows) * FileScaleRowBytes(m);
        scale_source += first * FileScaleRowBytes(m);
      }
      DSV4_RETURN_IF_ERROR(Room(code_bytes, scale_bytes));
      slice.codes = Stage(m.codes + r * m.row_bytes(), code_bytes);
      if (scale_bytes > 0) slice.block_scale = Stage(scale_source, scale_bytes);
      const int64_t row_tiles = r / kTileRows16;
      AddPack({.w = slice, .codes = codes + row_tiles * CeilDiv(m.cols, kTileCols64) * TileBytes(m.format),
               .block_scale = scales == nullptr ? nullptr : scales + row_tiles * CeilDiv(m.cols, kFp8BlockSize) * 4},
              on_host);
    }
    return {};
  }

  // `read_done`: when the last byte was there.
  Status Finish(std::chrono::steady_clock::time_point* read_done) {
    DSV4_RETURN_IF_ERROR(reader_.Wait(number_));
    *read_done = std::chrono::steady_clock::now();
    while (retired_ <= number_) DSV4_RETURN_IF_ERROR(Retire());
    return device_.Synchronize();
  }

 private:
  // The largest part: with the blocks around it, it fits a batch.
  static constexpr int64_t kLargest = kBatchBytes - 4 * ParallelReader::kBlock;

  struct DeviceCopy {
    uint8_t* dst;
    const uint8_t* src;
    int64_t bytes;
  };
  struct Packing {
    PackWeightArgs args;
    std::vector<DeviceCopy> copies;  // what follows: of tiles for the host, which are packed in packed_
  };
  // What travels together: host staging, the same bytes on the device, and what is done with them there.
  struct Batch {
    uint8_t* host = nullptr;
    uint8_t* device = nullptr;
    int64_t used = 0;
    int64_t bytes = 0;
    int64_t mark = 0;
    std::vector<DeviceCopy> copies;  // out of the batch's device memory
    std::vector<Packing> packs;
  };

  Batch& current() { return batches_[number_ % kBatches]; }

  void AddPack(PackWeightArgs args, bool on_host) {
    Packing p{args, {}};
    if (on_host) {
      uint8_t* const codes = packed_.data();
      uint8_t* const scales = codes + AlignedBytes(PackedCodeBytes(args.w));
      p.copies.push_back({args.codes, codes, PackedCodeBytes(args.w)});
      if (args.block_scale != nullptr) p.copies.push_back({args.block_scale, scales, PackedScaleBytes(args.w)});
      p.args.codes = codes;
      p.args.block_scale = args.block_scale == nullptr ? nullptr : scales;
    }
    current().packs.push_back(std::move(p));
  }

  // Room for parts of these sizes, wherever in a block they begin.
  Status Room(int64_t bytes, int64_t more = 0) {
    const auto slot = [](int64_t n) {
      return CeilDiv(n, ParallelReader::kBlock) * ParallelReader::kBlock + ParallelReader::kBlock;
    };
    return current().used + slot(bytes) + slot(more) > kBatchBytes ? Next() : Status{};
  }

  // Where `bytes` from `src` will be on the device: 4-byte aligned, as kernels that pack take them.
  const uint8_t* Stage(const uint8_t* src, int64_t bytes) {
    Batch& b = current();
    FilePart part{.bytes = bytes};
    int64_t pad = 0;
    uint8_t* slot = b.host + b.used;
    const uint8_t* on_device = b.device + b.used;
    if (reader_.Locate(src, &part) && part.offset % 4 == 0) {
      pad = ParallelReader::PadBytes(part);
      reader_.Read(number_, part, slot);
      b.used += ParallelReader::SlotBytes(part);
    } else {
      reader_.Copy(number_, slot, src, bytes);
      b.used += CeilDiv(bytes, ParallelReader::kBlock) * ParallelReader::kBlock;
    }
    b.bytes += bytes;
    return on_device + pad;
  }

  // Goes on to the next batch: whatever is in the way of it is finished first.
  Status Next() {
    ++number_;
    while (retired_ + 2 <= number_) DSV4_RETURN_IF_ERROR(Retire());
    Batch& b = current();
    if (b.mark > 0) DSV4_RETURN_IF_ERROR(device_.Wait(b.mark));
    b.mark = b.used = b.bytes = 0;
    b.copies.clear();
    b.packs.clear();
    return {};
  }

  // The oldest batch that is only read: copied, and packed behind that.
  Status Retire() {
    Batch& b = batches_[retired_ % kBatches];
    DSV4_RETURN_IF_ERROR(reader_.Wait(retired_));
    device_.Upload(b.device, b.host, b.used);
    for (const DeviceCopy& c : b.copies) device_.CopyWithin(c.dst, c.src, c.bytes);
    for (const Packing& p : b.packs) {
      PackWeight(ctx_, p.args);
      for (const DeviceCopy& c : p.copies) device_.CopyWithin(c.dst, c.src, c.bytes);
    }
    b.mark = device_.Mark();
    ++retired_;
    done_ += b.bytes;
    return progress_ && !progress_(done_, total_) ? Cancelled("loading was cancelled") : Status{};
  }

  Device& device_;
  ExecContext ctx_;
  ParallelReader& reader_;
  const std::function<bool(int64_t, int64_t)>& progress_;
  int64_t total_, done_ = 0;
  void* host_ = nullptr;
  DeviceBuffer on_device_, packed_;
  Batch batches_[kBatches];
  int64_t number_ = 0, retired_ = 0;  // batches begun, minus one; batches handed to the device
};

}  // namespace

PlacedBytes UploadedBytes(const Weights& weights, const ExpertPlacement& placement) {
  PlacedBytes bytes;
  VisitNamedWeights(
      weights,
      [&](const WeightRef& ref, const QuantTensor& m) {
        (placement.OnHost(ref) ? bytes.host : bytes.device) += UploadedMatrixBytes(m, KeepsRows(ref.row->kind));
      },
      [&](const WeightRef&, const Tensor& t) {
        if (t) bytes.device += AlignedBytes(t.num_bytes());
      });
  for (const LayerWeights& layer : weights.layers) {
    bytes.device += AlignedBytes(ExpertTableBytes(layer.moe));
  }
  return bytes;
}

std::vector<int64_t> UploadedExpertBytes(const Weights& weights) {
  return BytesOfExperts(weights, [](const QuantTensor& m) { return UploadedMatrixBytes(m, /*keep_rows=*/false); });
}

PlacedBytes UploadStagingBytes(const Weights& weights, const ExpertPlacement& placement) {
  return {.device = kBatches * kBatchBytes + LargestOnHost(weights, placement), .host = kBatches * kBatchBytes};
}

Result<Weights> UploadWeights(Device& device, ThreadPool& pool, const Weights& host, const ExpertPlacement& placement,
                              const TensorSource* source,
                              const std::function<bool(int64_t, int64_t)>& progress, LoadTimes* times) {
  auto seconds = [last = std::chrono::steady_clock::now()](auto now) mutable {
    return std::chrono::duration<double>(now - std::exchange(last, now)).count();
  };
  Weights w = host;
  int64_t total = 0;
  VisitWeights(
      host,
      [&](const QuantTensor& m, bool) {
        if (m) total += m.rows * (m.row_bytes() + (InfoOf(m.format).grid() ? 0 : FileScaleRowBytes(m)));
      },
      [&](const Tensor& t) { total += t ? t.num_bytes() : 0; });

  auto arena = std::make_shared<WeightArena>();
  const PlacedBytes bytes = UploadedBytes(host, placement);
  if (!arena->Allocate(device, bytes)) {
    return ResourceExhausted(StrCat("the weights take ", bytes.device, " bytes of GPU memory, of which ",
                                    device.free_bytes(), " are free",
                                    bytes.host > 0 ? StrCat(", and ", bytes.host, " bytes of pinned memory") : "",
                                    "; close other programs or use --device cpu"));
  }
  ParallelReader reader(source != nullptr ? source->maps() : std::vector<std::shared_ptr<const MappedFile>>{});
  Uploader up(device, pool, reader, progress, total);
  DSV4_RETURN_IF_ERROR(up.Prepare(LargestOnHost(host, placement)));
  const double allocate = seconds(std::chrono::steady_clock::now());
  Status status;
  VisitNamedWeights(
      w,
      [&](const WeightRef& ref, QuantTensor& m) {
        if (!m || !status.ok()) return;
        const bool keep_rows = KeepsRows(ref.row->kind), on_host = placement.OnHost(ref);
        uint8_t* codes = arena->Take(CodeBytes(m, keep_rows), on_host);
        if (KeepsRows(m, keep_rows)) {
          status = up.Copy(codes, m.codes, m.rows * m.row_bytes());
          m.codes = codes;
          return;
        }
        uint8_t* scales = ScaleBytes(m, keep_rows) > 0 ? arena->Take(ScaleBytes(m, keep_rows), on_host) : nullptr;
        status = up.Pack(m, codes, scales, on_host);
        m = PackedView({.w = m, .codes = codes, .block_scale = scales});
      },
      [&](const WeightRef&, Tensor& t) {
        if (!t || !status.ok()) return;
        uint8_t* data = arena->Take(t.num_bytes());
        status = up.Copy(data, static_cast<const uint8_t*>(t.data), t.num_bytes());
        t.data = data;
      });
  // The experts' tables name addresses that are known only now.
  std::vector<std::vector<ExpertWeights>> tables;  // read until the upload has finished
  for (LayerWeights& layer : w.layers) {
    if (!status.ok()) break;
    tables.push_back(ExpertTable(layer.moe));
    const int64_t n = ExpertTableBytes(layer.moe);
    uint8_t* table = arena->Take(n);
    status = up.Copy(table, reinterpret_cast<const uint8_t*>(tables.back().data()), n);
    layer.moe.table = reinterpret_cast<const ExpertWeights*>(table);
  }
  DSV4_RETURN_IF_ERROR(status);
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
  w.storage = std::move(arena);
  return w;
}

}  // namespace dsv4::deepseek_v4
