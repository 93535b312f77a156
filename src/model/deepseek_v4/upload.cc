#include "model/deepseek_v4/upload.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/str.h"
#include "model/deepseek_v4/visit_weights.h"
#include "model/deepseek_v4/weight_arena.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4 {

namespace {

constexpr int64_t kStagingBytes = int64_t{96} << 20;
constexpr int64_t kCopyPiece = int64_t{1} << 20;  // what a thread copies at a time
constexpr int64_t kSliceRows = 128;               // slices of a matrix begin at multiples: FP8's scales, 16-row tiles

bool KeepsRows(const QuantTensor& m, bool keep_rows) { return keep_rows || m.format == WeightFormat::kF32; }

// Bytes on the device.
int64_t CodeBytes(const QuantTensor& m, bool keep_rows) {
  return KeepsRows(m, keep_rows) ? m.rows * m.row_bytes() : PackedCodeBytes(m);
}
int64_t ScaleBytes(const QuantTensor& m, bool keep_rows) { return KeepsRows(m, keep_rows) ? 0 : PackedScaleBytes(m); }

class Uploader {
 public:
  Uploader(Device& device, ThreadPool& pool, const std::function<bool(int64_t, int64_t)>& progress, int64_t total)
      : device_(device), ctx_(device.Context(&pool, false)), pool_(pool), progress_(progress), total_(total) {}
  ~Uploader() {
    (void)device_.Synchronize();
    for (Batch& b : batches_) {
      if (b.host != nullptr) device_.FreeStaging(b.host);
    }
  }

  Status Prepare() {
    for (Batch& b : batches_) {
      b.host = static_cast<uint8_t*>(device_.AllocateStaging(kStagingBytes));
      if (b.host == nullptr || !b.device.Allocate(device_, kStagingBytes)) {
        return ResourceExhausted(StrCat("no memory for a staging buffer of ", kStagingBytes, " bytes; free some memory"));
      }
    }
    return {};
  }

  // Bytes as they are.
  Status Copy(uint8_t* dst, const uint8_t* src, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kStagingBytes) {
      const int64_t n = std::min(kStagingBytes, bytes - at);
      DSV4_RETURN_IF_ERROR(Room(n));
      current().copies.push_back({dst + at, Stage(src + at, n), n});
    }
    return {};
  }

  // A matrix as tiles at `codes` and `scales`, a slice of rows at a time.
  Status Pack(const QuantTensor& m, uint8_t* codes, uint8_t* scales) {
    if (m.format == WeightFormat::kFp8Block && m.scale_row_offset % kTileRows16 != 0) {
      return Unsupported(StrCat("an FP8 matrix begins at row ", m.scale_row_offset, " of its scale grid's tensor; on a GPU "
                                "that must be a multiple of ", kTileRows16, "; use --device cpu"));
    }
    const int64_t row_bytes = m.row_bytes() + CeilDiv(FileScaleRowBytes(m), m.format == WeightFormat::kFp8Block ? 128 : 1);
    const int64_t fitting = (kStagingBytes / 2) / std::max<int64_t>(row_bytes, 1) / kSliceRows * kSliceRows;
    if (fitting == 0) return Unsupported(StrCat("a matrix of ", m.cols, " columns is too wide for the GPU loader"));
    for (int64_t r = 0; r < m.rows; r += fitting) {
      QuantTensor slice = m;
      slice.rows = std::min(fitting, m.rows - r);
      const int64_t code_bytes = slice.rows * m.row_bytes();
      int64_t scale_bytes = 0;
      const uint8_t* scale_source = m.block_scale;
      if (m.format == WeightFormat::kFp8Block) {
        const int64_t first = (m.scale_row_offset + r) / kFp8BlockSize;
        slice.scale_row_offset = (m.scale_row_offset + r) % kFp8BlockSize;
        scale_bytes = CeilDiv(slice.scale_row_offset + slice.rows, kFp8BlockSize) * FileScaleRowBytes(m);
        scale_source += first * FileScaleRowBytes(m);
      } else if (m.quantised()) {
        scale_bytes = slice.rows * FileScaleRowBytes(m);
        scale_source += r * FileScaleRowBytes(m);
      }
      DSV4_RETURN_IF_ERROR(Room(AlignedBytes(code_bytes) + AlignedBytes(scale_bytes)));
      slice.codes = Stage(m.codes + r * m.row_bytes(), code_bytes);
      if (scale_bytes > 0) slice.block_scale = Stage(scale_source, scale_bytes);
      const int64_t row_tiles = r / kTileRows16;
      current().packs.push_back(
          {.w = slice, .codes = codes + row_tiles * CeilDiv(m.cols, kTileCols64) * TileBytes(m.format),
           .block_scale = scales == nullptr ? nullptr : scales + row_tiles * CeilDiv(m.cols, kFp8BlockSize) * 4});
    }
    return {};
  }

  Status Finish() {
    DSV4_RETURN_IF_ERROR(Flush());
    return device_.Synchronize();
  }

 private:
  struct DeviceCopy {
    uint8_t* dst;
    const uint8_t* src;  // in the batch's device memory
    int64_t bytes;
  };
  struct HostCopy {
    uint8_t* dst;
    const uint8_t* src;
    int64_t bytes;
  };
  // What travels together: host staging, the same bytes on the device, and what is done with them there.
  struct Batch {
    uint8_t* host = nullptr;
    DeviceBuffer device;
    int64_t used = 0;
    int64_t mark = 0;
    std::vector<HostCopy> sources;
    std::vector<DeviceCopy> copies;
    std::vector<PackWeightArgs> packs;
  };

  Batch& current() { return batches_[number_ % 2]; }

  Status Room(int64_t bytes) { return current().used + AlignedBytes(bytes) > kStagingBytes ? Flush() : Status{}; }

  // Where `bytes` from `src` will be on the device.
  const uint8_t* Stage(const uint8_t* src, int64_t bytes) {
    Batch& b = current();
    for (int64_t at = 0; at < bytes; at += kCopyPiece) {
      b.sources.push_back({b.host + b.used + at, src + at, std::min(kCopyPiece, bytes - at)});
    }
    const uint8_t* on_device = b.device.data() + b.used;
    b.used += AlignedBytes(bytes);
    done_ += bytes;
    return on_device;
  }

  Status Flush() {
    Batch& b = current();
    ParallelFor(&pool_, static_cast<int64_t>(b.sources.size()), /*grain=*/1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const HostCopy& c = b.sources[static_cast<size_t>(i)];
        std::memcpy(c.dst, c.src, static_cast<size_t>(c.bytes));
      }
    });
    device_.Upload(b.device.data(), b.host, b.used);
    for (const DeviceCopy& c : b.copies) device_.CopyWithin(c.dst, c.src, c.bytes);
    for (const PackWeightArgs& p : b.packs) PackWeight(ctx_, p);
    b.mark = device_.Mark();
    b.sources.clear();
    b.copies.clear();
    b.packs.clear();
    b.used = 0;
    ++number_;
    if (progress_ && !progress_(done_, total_)) return Cancelled("loading was cancelled");
    return current().mark > 0 ? device_.Wait(current().mark) : Status{};
  }

  Device& device_;
  ExecContext ctx_;
  ThreadPool& pool_;
  const std::function<bool(int64_t, int64_t)>& progress_;
  int64_t total_, done_ = 0;
  Batch batches_[2];
  size_t number_ = 0;
};

}  // namespace

int64_t DeviceWeightBytes(const Weights& weights) {
  int64_t bytes = 0;
  VisitWeights(
      weights,
      [&](const QuantTensor& m, bool keep_rows) {
        if (m) bytes += AlignedBytes(CodeBytes(m, keep_rows)) + AlignedBytes(ScaleBytes(m, keep_rows));
      },
      [&](const Tensor& t) {
        if (t) bytes += AlignedBytes(t.num_bytes());
      });
  for (const LayerWeights& layer : weights.layers) {
    bytes += AlignedBytes(ExpertTableBytes(layer.moe));
  }
  return bytes;
}

Result<Weights> UploadWeights(Device& device, ThreadPool& pool, const Weights& host,
                              const std::function<bool(int64_t, int64_t)>& progress) {
  Weights w = host;
  int64_t total = 0;
  VisitWeights(
      host,
      [&](const QuantTensor& m, bool) {
        if (m) total += m.rows * (m.row_bytes() + (m.format == WeightFormat::kFp8Block ? 0 : FileScaleRowBytes(m)));
      },
      [&](const Tensor& t) { total += t ? t.num_bytes() : 0; });

  auto arena = std::make_shared<WeightArena>();
  const int64_t bytes = DeviceWeightBytes(host);
  if (!arena->Allocate(device, bytes)) {
    return ResourceExhausted(StrCat("the weights take ", bytes, " bytes of GPU memory, of which ", device.free_bytes(),
                                    " are free; close other programs on the GPU or use --device cpu"));
  }
  Uploader up(device, pool, progress, total);
  DSV4_RETURN_IF_ERROR(up.Prepare());
  Status status;
  VisitWeights(
      w,
      [&](QuantTensor& m, bool keep_rows) {
        if (!m || !status.ok()) return;
        uint8_t* codes = arena->Take(CodeBytes(m, keep_rows));
        if (KeepsRows(m, keep_rows)) {
          status = up.Copy(codes, m.codes, m.rows * m.row_bytes());
          m.codes = codes;
          return;
        }
        uint8_t* scales = ScaleBytes(m, keep_rows) > 0 ? arena->Take(ScaleBytes(m, keep_rows)) : nullptr;
        status = up.Pack(m, codes, scales);
        m = PackedView({.w = m, .codes = codes, .block_scale = scales});
      },
      [&](Tensor& t) {
        if (!t || !status.ok()) return;
        uint8_t* data = arena->Take(t.num_bytes());
        status = up.Copy(data, static_cast<const uint8_t*>(t.data), t.num_bytes());
        t.data = data;
      });
  // The experts' tables name addresses that are known only now.
  for (LayerWeights& layer : w.layers) {
    if (!status.ok()) break;
    const int64_t n = ExpertTableBytes(layer.moe);
    uint8_t* table = arena->Take(n);
    status = up.Copy(table, reinterpret_cast<const uint8_t*>(layer.moe.experts.data()), n);
    layer.moe.table = reinterpret_cast<const ExpertWeights*>(table);
  }
  DSV4_RETURN_IF_ERROR(status);
  DSV4_RETURN_IF_ERROR(up.Finish());
  w.storage = std::move(arena);
  return w;
}

}  // namespace dsv4
