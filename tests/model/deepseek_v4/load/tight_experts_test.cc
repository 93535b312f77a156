// Which experts are uploaded in tight tiles. The CPU takes the role of the device.
#include "model/deepseek_v4/load/tight_experts.h"

#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/load/synthetic.h"
#include "model/deepseek_v4/load/synthetic_values.h"
#include "model/deepseek_v4/load/upload.h"
#include "ops/pack_weight/tight.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::TempDir;
using test::TestFormat;
using test::TestTensor;

class TightExperts : public ::testing::Test {
 protected:
  // The tiny model's MXFP4 scales are in 0x70 .. 0x7F; its NVFP4 scales have any value.
  void Load(TestFormat experts, const std::function<void(std::vector<TestTensor>&)>& change = {}) {
    const std::string dir = temp_ / std::to_string(number_++);
    std::filesystem::create_directories(dir);
    std::vector<TestTensor> tensors = test::MakeCheckpoint(test::TinyConfig(), {TestFormat::kFp8, experts});
    if (change) change(tensors);
    test::WriteModel(dir, test::TinyConfigJson(), tensors);
    source_ = std::move(TensorSource::Open(dir)).value();
    host_ = std::move(BindWeights(test::TinyConfig(), source_)).value();
    UseTightTiles(&pool_, &host_);
  }
  bool IsTightLayer(size_t l) const {
    const bool first = IsTight(host_.layers[l].moe.experts[0].gate.format);
    for (const ExpertWeights& e : host_.layers[l].moe.experts) {
      for (const QuantTensor* m : {&e.gate, &e.up, &e.down}) EXPECT_EQ(IsTight(m->format), first) << "all or none";
    }
    EXPECT_FALSE(IsTight(host_.layers[l].moe.shared.gate.format));
    return first;
  }
  TempDir temp_;
  int number_ = 0;
  ThreadPool pool_{2};
  std::shared_ptr<const TensorSource> source_;
  Weights host_;
};

TEST_F(TightExperts, AllExpertsOfALayerOrNone) {
  Load(TestFormat::kMxfp4);
  for (size_t l = 0; l < 3; ++l) EXPECT_TRUE(IsTightLayer(l)) << l;
  Load(TestFormat::kNvfp4);
  for (size_t l = 0; l < 3; ++l) EXPECT_FALSE(IsTightLayer(l)) << l;
  Load(TestFormat::kFp8);
  for (size_t l = 0; l < 3; ++l) EXPECT_FALSE(IsTightLayer(l)) << l;
  // One block of one matrix has one exponent too many.
  Load(TestFormat::kMxfp4, [](std::vector<TestTensor>& tensors) {
    test::Named(tensors, "layers.1.ffn.experts.3.w2.scale").bytes[5] = static_cast<char>(0x82);
  });
  for (size_t l = 0; l < 3; ++l) EXPECT_EQ(IsTightLayer(l), l != 1) << l;
  UseWideTiles(&host_);
  for (size_t l = 0; l < 3; ++l) EXPECT_FALSE(IsTightLayer(l)) << l;
}

TEST_F(TightExperts, ArriveInTilesOf528Bytes) {
  Load(TestFormat::kMxfp4, [](std::vector<TestTensor>& tensors) {
    test::Named(tensors, "layers.1.ffn.experts.3.w2.scale").bytes[5] = static_cast<char>(0x82);
  });
  const std::unique_ptr<Device> device = std::move(Device::Open("cpu")).value();
  const Weights got = std::move(UploadWeights(*device, pool_, host_, {}, source_.get(), {}, nullptr)).value();
  for (size_t l = 0; l < 3; ++l) {
    for (size_t e = 0; e < host_.layers[l].moe.experts.size(); ++e) {
      const ExpertWeights &in = host_.layers[l].moe.experts[e], &out = got.layers[l].moe.experts[e];
      for (const auto& [w, have] : {std::pair{&in.gate, &out.gate}, {&in.up, &out.up}, {&in.down, &out.down}}) {
        std::vector<uint8_t> want(static_cast<size_t>(PackedCodeBytes(*w)));
        EXPECT_EQ(PackedCodeBytes(*w), CeilDiv(w->rows, 16) * CeilDiv(w->cols, 64) * (l == 1 ? 576 : 528));
        PackWeight({}, {.w = *w, .codes = want.data()});
        EXPECT_EQ(std::memcmp(have->codes, want.data(), want.size()), 0) << l << " " << e;
        EXPECT_EQ(have->global_scale, l == 1 ? 1.0f : std::ldexp(1.0f, *FindTightBase(*w)));
        EXPECT_EQ(have->format, w->format);
        EXPECT_EQ(got.layers[l].moe.table[e].gate.format, in.gate.format) << "what kernels read";
      }
    }
  }
}

// Ranks divide down projections by columns. If that splits NVFP4's blocks of 32, the slice's tiles are wide.
TEST(TightSlices, KeepTheirExponentsWhole) {
  const QuantTensor whole{.format = WeightFormat::kNvfp4Tight, .rows = 64, .cols = 192, .exponent_base = -9};
  std::vector<uint8_t> bytes(64 * 192);
  QuantTensor m = whole;
  m.codes = bytes.data(), m.block_scale = bytes.data();
  for (const auto& [count, tight] : {std::pair{1, true}, {2, true}, {4, false}}) {
    std::vector<ColumnCopy> copies;
    const QuantTensor slice = ColumnSlice(m, {.rank = 0, .count = count}, bytes.data(), bytes.data(), &copies);
    EXPECT_EQ(IsTight(slice.format), tight) << count;
    EXPECT_EQ(slice.exponent_base, -9);
  }
}

// The released Flash: the experts of 43 layers take 142.8 GB; with tiles of 576 bytes 155.8 GB.
TEST(TightSynthetic, FlashTakes4125BitsAWeight) {
  for (const SyntheticExperts experts : {SyntheticExperts::kNvfp4Cast, SyntheticExperts::kMxfp4}) {
    const SyntheticModel model{.shape = "flash", .experts = experts};
    const Weights tight = SyntheticShapes(SyntheticConfig(model).value(), model);
    Weights wide = tight;
    UseWideTiles(&wide);
    const auto bytes = [](const Weights& w) {
      int64_t sum = 0;
      for (const LayerWeights& layer : w.layers) {
        for (const ExpertWeights& e : layer.moe.experts)
          for (const QuantTensor* m : {&e.gate, &e.up, &e.down}) sum += PackedCodeBytes(*m);
      }
      return sum;
    };
    EXPECT_EQ(bytes(tight), int64_t{43} * 256 * 3 * 4096 * 2048 / 1024 * 528);  // 142.84e9
    EXPECT_EQ(bytes(wide), int64_t{43} * 256 * 3 * 4096 * 2048 / 1024 * 576);   // 155.82e9
    EXPECT_EQ(UploadedBytes(wide, {}).device - UploadedBytes(tight, {}).device, bytes(wide) - bytes(tight));
  }
}

}  // namespace
}  // namespace dsv4::deepseek_v4
