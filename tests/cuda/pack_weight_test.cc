#include "ops/pack_weight/pack_weight.h"

#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void PackWeightCuda(const ExecContext& ctx, const PackWeightArgs& args);
}

namespace dsv4::test {
namespace {

TEST(CudaPackWeight, SameBytesAsTheReference) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const QuantCase kind : AllQuantCases()) {
    if (kind.format == WeightFormat::kF32) continue;
    const int64_t granule = ColumnGranule(kind.format);
    for (const auto& [n, width] :
         {std::pair{int64_t{1}, int64_t{1}}, {16, 64}, {17, 65}, {33, 131}, {5, 300}, {250, 16}, {144, 1024}}) {
      const int64_t k = CeilDiv(width, granule) * granule;
      for (const int64_t offset : {int64_t{0}, int64_t{16}, int64_t{112}}) {
        for (const int64_t skew : {0, 1, 8}) {
          const QuantFixture w(random, kind, n, k, {.unaligned = false, .scale_row_offset = offset});
          SCOPED_TRACE(StrCat(kind.name(), " N ", n, " K ", k, " offset ", offset, " skew ", skew));
          GuardBuffer<uint8_t> want(PackedCodeBytes(w.tensor())), codes(want.size());
          GuardBuffer<uint8_t> want_scales(PackedScaleBytes(w.tensor())), scales(want_scales.size());
          PackWeight({.reference_ops = true}, {.w = w.tensor(), .codes = want.data(), .block_scale = want_scales.data()});
          // The rows on the device, `skew` bytes behind an aligned address, as a file's tensors may lie.
          Mirror gpu;
          const auto put = [&](const uint8_t* host, int64_t bytes) {
            std::vector<uint8_t> shifted(static_cast<size_t>(skew + bytes));
            if (bytes > 0) std::memcpy(shifted.data() + skew, host, static_cast<size_t>(bytes));
            return gpu.Array(shifted) + skew;
          };
          QuantTensor rows = w.tensor();
          rows.codes = put(rows.codes, n * rows.row_bytes());
          if (rows.quantised()) {
            const int64_t grid = CeilDiv(offset + n, 128) * CeilDiv(k, 128);
            const int64_t bytes = kind.format == WeightFormat::kFp8Block ? grid * (kind.scale_dtype == DType::kF32 ? 4 : 1)
                                  : kind.format == WeightFormat::kMxfp4  ? n * k / 32
                                                                         : n * k / 16;
            rows.block_scale = put(rows.block_scale, bytes);
          }
          PackWeightCuda(gpu.ctx(), {.w = rows,
                                     .codes = static_cast<uint8_t*>(gpu.Out(codes.tensor()).data),
                                     .block_scale = static_cast<uint8_t*>(gpu.Out(scales.tensor()).data)});
          gpu.Finish();
          EXPECT_EQ(codes.values(), want.values());
          EXPECT_EQ(scales.values(), want_scales.values());
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
