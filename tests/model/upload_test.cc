// Uploading checkpoints: what arrives on the device is what is in the files, packed. The CPU stands for the device
// here; tests/ops/pack_weight_test.cc covers the kernels.
#include "model/deepseek_v4/upload.h"

#include <cstring>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/checkpoint_builder.h"
#include "model/deepseek_v4/bind.h"
#include "model/deepseek_v4/visit_weights.h"
#include "model/deepseek_v4/weight_arena.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::Dialect;
using test::TempDir;
using test::TestFormat;

class Upload : public ::testing::Test {
 protected:
  void Load(const Dialect& dialect) {
    std::filesystem::create_directories(temp_ / "model");
    test::WriteModel(temp_ / "model", test::TinyConfigJson(), test::MakeCheckpoint(test::TinyConfig(), dialect));
    source_ = std::move(TensorSource::Open(temp_ / "model")).value();
    host_ = std::move(BindWeights(test::TinyConfig(), source_)).value();
  }
  TempDir temp_;
  std::unique_ptr<Device> device_ = std::move(Device::Open("cpu")).value();
  ThreadPool pool_{2};
  std::shared_ptr<const TensorSource> source_;
  Weights host_;
};

TEST_F(Upload, MatricesArriveAsTilesAndTheRestAsItIs) {
  for (const TestFormat format :
       {TestFormat::kBf16, TestFormat::kFp8, TestFormat::kFp8F32Scale, TestFormat::kMxfp4, TestFormat::kNvfp4}) {
    Load({format, format});
    const std::vector<int64_t> expert_bytes = UploadedExpertBytes(host_);
    for (const bool from_files : {true, false}) {
      // Without counts the last experts of every layer.
      const int64_t embedding = AlignedBytes(FileBytes(host_.embed));
      const int64_t on_host = from_files ? embedding + test::TinyConfig().num_experts * expert_bytes[0] : 0;
      const ExpertPlacement placement =
          ExpertPlacement::Coldest(embedding, expert_bytes, test::TinyConfig().num_experts, on_host, {});
      const PlacedBytes bytes = UploadedBytes(host_, placement), whole = UploadedBytes(host_, {});
      EXPECT_EQ(bytes.host, on_host);
      EXPECT_EQ(bytes.device + bytes.host, whole.device);
      LoadTimes times;
      const TensorSource* const files = from_files ? source_.get() : nullptr;
      auto uploaded = UploadWeights(*device_, pool_, host_, placement, files, {}, &times);
      ASSERT_TRUE(uploaded.ok()) << uploaded.status().message();
      EXPECT_EQ(times.bytes > 0, from_files);
      std::vector<const QuantTensor*> got;
      std::vector<const Tensor*> got_vectors;
      VisitWeights(
          *uploaded, [&](const QuantTensor& m, bool) { got.push_back(&m); },
          [&](const Tensor& t) { got_vectors.push_back(&t); });
      size_t i = 0, v = 0;
      VisitWeights(
          host_,
          [&](const QuantTensor& m, bool keep_rows) {
            const QuantTensor& have = *got[i++];
            ASSERT_EQ(static_cast<bool>(have), static_cast<bool>(m));
            if (!m) return;
            if (keep_rows || m.format == WeightFormat::kF32) {
              EXPECT_EQ(std::memcmp(have.codes, m.codes, static_cast<size_t>(m.rows * m.row_bytes())), 0);
              return;
            }
            std::vector<uint8_t> codes(static_cast<size_t>(PackedCodeBytes(m))),
                scales(static_cast<size_t>(PackedScaleBytes(m)) + 4);
            PackWeight({}, {.w = m, .codes = codes.data(), .block_scale = scales.data()});
            EXPECT_EQ(have.layout, WeightLayout::kTiles);
            EXPECT_EQ(have.global_scale, m.global_scale);
            EXPECT_EQ(std::memcmp(have.codes, codes.data(), codes.size()), 0) << i;
            if (PackedScaleBytes(m) > 0) {
              EXPECT_EQ(std::memcmp(have.block_scale, scales.data(), static_cast<size_t>(PackedScaleBytes(m))), 0) << i;
            }
          },
          [&](const Tensor& t) {
            const Tensor& have = *got_vectors[v++];
            ASSERT_EQ(static_cast<bool>(have), static_cast<bool>(t));
            if (t) {
              EXPECT_EQ(std::memcmp(have.data, t.data, static_cast<size_t>(t.num_bytes())), 0);
            }
          });
    }
  }
}

TEST_F(Upload, CancellingStops) {
  Load({TestFormat::kNvfp4, TestFormat::kNvfp4});
  const auto uploaded = UploadWeights(
      *device_, pool_, host_, {}, source_.get(), [](int64_t, int64_t) { return false; }, nullptr);
  EXPECT_EQ(uploaded.status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace dsv4::deepseek_v4
