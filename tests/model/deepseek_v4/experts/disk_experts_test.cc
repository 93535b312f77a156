// Experts that stay in the files: loading one gives the same bytes as uploading it. The CPU takes the role of the
// device.
#include "model/deepseek_v4/experts/disk_experts.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"
#include "model/deepseek_v4/load/upload.h"
#include "model/deepseek_v4/schema/expert_matrices.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::TempDir;
using test::TestFormat;

std::string PlacedExpert(const ExpertWeights& e) {
  std::string bytes;
  for (const auto m : kExpertMatrices) {
    bytes.append(reinterpret_cast<const char*>((e.*m).codes), static_cast<size_t>(PlacedCodeBytes(e.*m)));
    bytes.append(reinterpret_cast<const char*>((e.*m).block_scale), static_cast<size_t>(PlacedScaleBytes(e.*m)));
  }
  return bytes;
}

class DiskExpertsTest : public ::testing::Test {
 protected:
  void Load(TestFormat format) {
    config_ = test::TinyConfig();
    config_.vocab_size = 32;
    std::filesystem::create_directories(temp_ / "model");
    test::WriteModel(temp_ / "model", test::TinyConfigJson(), test::MakeCheckpoint(config_, {format, format}));
    source_ = std::move(TensorSource::Open(temp_ / "model")).value();
    host_ = std::move(BindWeights(config_, source_)).value();
  }
  // Two of the four experts of every layer on the disk, one on the host.
  ExpertPlacement Placed(int count) {
    expert_bytes_ = UploadedExpertBytes(ShardShapes(host_, {.count = count}));
    const int64_t one_each = expert_bytes_[0] * static_cast<int64_t>(expert_bytes_.size());
    ExpertPlacement placement = ExpertPlacement::Coldest(0, expert_bytes_, config_.num_experts, 3 * one_each, {});
    placement.LeaveOnDisk(expert_bytes_, 2 * one_each, {});
    EXPECT_EQ(placement.CountByLayer(), std::vector<int64_t>(expert_bytes_.size(), 1));
    EXPECT_EQ(placement.DiskByLayer(), std::vector<int64_t>(expert_bytes_.size(), 2));
    return placement;
  }
  // A pass chooses these experts of `layer`, one per token.
  void Choose(DiskExperts& disk, int64_t layer, std::vector<int32_t> ids) {
    ExecContext ctx;
    ctx.pool = &pool_;
    disk.Of(layer)->Bring(ctx, {ids.data(), DType::kI32, {static_cast<int64_t>(ids.size()), 1}});
  }

  TempDir temp_;
  Config config_;
  std::unique_ptr<Device> devices_[2] = {Device::Open("cpu").value(), Device::Open("cpu").value()};
  ThreadPool pool_{2};
  std::shared_ptr<const TensorSource> source_;
  Weights host_;
  std::vector<int64_t> expert_bytes_;
};

TEST_F(DiskExpertsTest, WhatIsBroughtIsWhatUploadingMakes) {
  for (const TestFormat format :
       {TestFormat::kBf16, TestFormat::kFp8, TestFormat::kFp8F32Scale, TestFormat::kMxfp4, TestFormat::kNvfp4}) {
    for (const size_t count : {1, 2}) {
      Load(format);
      const ExpertPlacement placement = Placed(static_cast<int>(count));
      Device* const devices[] = {devices_[0].get(), devices_[1].get()};
      const auto whole = UploadRanks({devices, count}, pool_, host_, {}, source_.get(), {}, nullptr);
      auto some = UploadRanks({devices, count}, pool_, host_, placement, source_.get(), {}, nullptr);
      ASSERT_TRUE(whole.ok() && some.ok()) << some.status().message();
      for (size_t r = 0; r < count; ++r) {
        std::set<std::pair<int64_t, int64_t>> named;
        const ExpertHomes homes{std::make_shared<const Weights>(host_),
                                {.rank = static_cast<int>(r), .count = static_cast<int>(count)}};
        const auto disk = DiskExperts::Open(*devices[r], (*some)[r], placement, expert_bytes_, homes,
                                            [&](int64_t l, int64_t e, const ExpertWeights&) {
                                              named.insert({l, e});
                                            });
        ASSERT_NE(disk, nullptr);
        for (int64_t l = 0; l < host_.num_layers(); ++l) {
          Choose(*disk, l, {0, 3, 2, 1, 3});
          for (size_t e = 0; e < 4; ++e) {
            const ExpertWeights& got = (*some)[r].layers[static_cast<size_t>(l)].moe.experts[e];
            const ExpertWeights& want = (*whole)[r].layers[static_cast<size_t>(l)].moe.experts[e];
            EXPECT_EQ(got.gate.layout, want.gate.layout);
            EXPECT_EQ(got.down.cols, want.down.cols);
            EXPECT_EQ(got.up.global_scale, want.up.global_scale);
            EXPECT_TRUE(PlacedExpert(got) == PlacedExpert(want)) << l << ", " << e << ", rank " << r;
            EXPECT_EQ(named.count({l, e}), placement.OnDisk(l, static_cast<int64_t>(e)) ? 1u : 0u);
          }
        }
        EXPECT_EQ(disk->use().reads, 2 * host_.num_layers());
      }
    }
  }
}

// Two cache slots for six experts, three layers: the least recently used expert is replaced, and cached ones are not
// read.
TEST_F(DiskExpertsTest, TheLeastUsedPlaceIsTaken) {
  Load(TestFormat::kNvfp4);
  const ExpertPlacement placement = Placed(1);
  Device* const one = devices_[0].get();
  auto weights = UploadRanks({&one, 1}, pool_, host_, placement, source_.get(), {}, nullptr);
  ASSERT_TRUE(weights.ok());
  const ExpertHomes homes{std::make_shared<const Weights>(host_), {}};
  const auto disk = DiskExperts::Open(*one, weights->front(), placement, expert_bytes_, homes, [](auto...) {});
  ASSERT_NE(disk, nullptr);
  const auto reads = [&](int64_t layer, const std::vector<int32_t>& ids) {
    const int64_t before = disk->use().reads;
    Choose(*disk, layer, ids);
    return disk->use().reads - before;
  };
  EXPECT_EQ(reads(0, {0, -1, 4}), 0) << "on the device, none, the shared one";
  EXPECT_EQ(reads(0, {2}), 1);
  EXPECT_EQ(reads(1, {3}), 1);
  EXPECT_EQ(reads(0, {2, 2}), 0);
  EXPECT_EQ(reads(2, {2}), 1) << "in the place of layer 1's";
  EXPECT_EQ(reads(0, {2}), 0);
  EXPECT_EQ(reads(1, {3}), 1);
  EXPECT_EQ(disk->use().found, 3u);
  disk->Bring(1, 3);
  disk->Bring(1, 0);
  EXPECT_EQ(disk->use().found, 3u) << "choices only";
  EXPECT_EQ(disk->use().reads, 4);
  EXPECT_GT(disk->use().bytes, 0);
}

}  // namespace
}  // namespace dsv4::deepseek_v4
