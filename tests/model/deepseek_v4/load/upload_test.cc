// Uploading checkpoints: the device gets the packed contents of the files. The CPU takes the role of the device;
// tests/ops/pack_weight_test.cc tests the kernels.
#include "model/deepseek_v4/load/upload.h"

#include <cstring>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"
#include "model/deepseek_v4/load/shard.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/visit_weights.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {
namespace {

using test::Dialect;
using test::TempDir;
using test::TestFormat;

class Upload : public ::testing::Test {
 protected:
  void Load(const Dialect& dialect, const Config& config = test::TinyConfig(), bool stacked = false) {
    std::filesystem::create_directories(temp_ / "model");
    auto tensors = test::MakeCheckpoint(config, dialect);
    if (stacked) tensors = test::ToTransformersNames(config, std::move(tensors), stacked);
    test::WriteModel(temp_ / "model", test::TinyConfigJson(), tensors);
    source_ = std::move(TensorSource::Open(temp_ / "model")).value();
    host_ = std::move(BindWeights(config, source_)).value();
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
      // Without counts: the last experts of every layer.
      const int64_t embedding = AlignedBytes(FileBytes(host_.embed));
      const int64_t on_host = from_files ? embedding + test::TinyConfig().num_experts * expert_bytes[0] : 0;
      const ExpertPlacement placement = ExpertPlacement::Coldest(embedding, expert_bytes,
                                                                 test::TinyConfig().num_experts, on_host, {});
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

// Bytes of a matrix in the layout of the device.
std::string OnDevice(const QuantTensor& m) {
  if (!m) return "";
  const bool tiles = m.layout == WeightLayout::kTiles;
  const int64_t codes = tiles ? PackedCodeBytes(m) : m.rows * m.row_bytes();
  std::string bytes(reinterpret_cast<const char*>(m.codes), static_cast<size_t>(codes));
  if (tiles && PackedScaleBytes(m) > 0)
    bytes.append(reinterpret_cast<const char*>(m.block_scale), static_cast<size_t>(PackedScaleBytes(m)));
  return bytes;
}

// The bytes of every matrix on the device.
std::vector<std::string> AllOnDevice(const Weights& w) {
  std::vector<std::string> all;
  VisitWeights(
      w, [&](const QuantTensor& m, bool) { all.push_back(OnDevice(m)); }, [](const Tensor&) {});
  return all;
}

TEST_F(Upload, StackedExpertsArriveAsSeparateOnes) {
  std::vector<std::string> separate;
  for (const bool stacked : {false, true}) {
    Load({}, test::TinyConfig(), stacked);
    LoadTimes times;
    const auto uploaded = UploadWeights(*device_, pool_, host_, {}, source_.get(), {}, &times);
    ASSERT_TRUE(uploaded.ok()) << uploaded.status().message();
    if (!stacked) separate = AllOnDevice(*uploaded);
    EXPECT_TRUE(AllOnDevice(*uploaded) == separate);  // bytes: not for printing
  }
}

// Ranks that are uploaded together get the same as each rank alone, and each byte of the files is read once.
TEST_F(Upload, RanksShareOneReading) {
  for (const TestFormat format :
       {TestFormat::kBf16, TestFormat::kFp8, TestFormat::kFp8F32Scale, TestFormat::kMxfp4, TestFormat::kNvfp4}) {
    Config config = test::TinyConfig();
    config.vocab_size = 32;  // whole tiles of output rows for each
    Load({format, format}, config);
    ASSERT_TRUE(CheckSharding(config, host_, 2).ok());
    LoadTimes alone, together;
    ASSERT_TRUE(UploadWeights(*device_, pool_, host_, {}, source_.get(), {}, &alone).ok());
    const std::unique_ptr<Device> second = std::move(Device::Open("cpu")).value();
    Device* const devices[] = {device_.get(), second.get()};
    const auto ranks = UploadRanks(devices, pool_, host_, {}, source_.get(), {}, &together);
    ASSERT_TRUE(ranks.ok()) << ranks.status().message();
    ASSERT_EQ(ranks->size(), 2u);
    EXPECT_EQ(together.bytes, alone.bytes);
    for (int r = 0; r < 2; ++r) {
      const Weights slices = std::move(ShardWeights(host_, {.rank = r, .count = 2}, &pool_)).value();
      const Weights want = std::move(UploadWeights(*device_, pool_, slices, {}, nullptr, {}, nullptr)).value();
      std::vector<std::string> wanted;
      const auto of_vector = [](const Tensor& t) {
        return t ? std::string(static_cast<const char*>(t.data), static_cast<size_t>(t.num_bytes())) : "";
      };
      VisitWeights(
          want, [&](const QuantTensor& m, bool) { wanted.push_back(OnDevice(m)); },
          [&](const Tensor& t) { wanted.push_back(of_vector(t)); });
      size_t i = 0;
      VisitNamedWeights(
          (*ranks)[static_cast<size_t>(r)],
          [&](const WeightRef& ref, const QuantTensor& m) { EXPECT_TRUE(OnDevice(m) == wanted[i++]) << ref.Stem(); },
          [&](const WeightRef& ref, const Tensor& t) { EXPECT_TRUE(of_vector(t) == wanted[i++]) << ref.Stem(); });
    }
  }
}

// With slices one rank has the parts of several, and weights outside the layers whole, without duplicates.
TEST_F(Upload, SlicesOfOneRankAreThePartsOfSeveral) {
  for (const TestFormat format : {TestFormat::kBf16, TestFormat::kFp8, TestFormat::kNvfp4}) {
    Config config = test::TinyConfig();
    config.vocab_size = 32;
    Load({format, format}, config);
    const std::unique_ptr<Device> second = std::move(Device::Open("cpu")).value();
    Device* const devices[] = {device_.get(), second.get()};
    LoadTimes times, plain_times;
    const auto sliced = UploadRanks({devices, 1}, pool_, host_, {}, source_.get(), {}, &times, /*fixed_cuts=*/2);
    const auto ranks = UploadRanks(devices, pool_, host_, {}, source_.get(), {}, &plain_times);
    ASSERT_TRUE(sliced.ok() && ranks.ok()) << sliced.status().message();
    EXPECT_EQ(times.bytes, plain_times.bytes);
    const Weights& got = sliced->front();
    EXPECT_EQ(got.head.rows, config.vocab_size);
    for (size_t l = 0; l < got.layers.size(); ++l) {
      ASSERT_EQ(got.layers[l].attn.slices.size(), 2u);
      for (size_t r = 0; r < 2; ++r) {
        const LayerWeights& want = (*ranks)[r].layers[l];
        const HeadWeights& heads = got.layers[l].attn.slices[r];
        EXPECT_EQ(OnDevice(heads.q_b), OnDevice(want.attn.q_b)) << l;
        EXPECT_EQ(OnDevice(heads.o_a), OnDevice(want.attn.o_a)) << l;
        EXPECT_EQ(OnDevice(heads.o_b), OnDevice(want.attn.o_b)) << l;
        EXPECT_EQ(std::memcmp(heads.sink.data, want.attn.sink.data, static_cast<size_t>(heads.sink.num_bytes())), 0);
        const ExpertSlice& slice = got.layers[l].moe.slices[r];
        ASSERT_EQ(slice.experts.size(), want.moe.experts.size());
        for (size_t e = 0; e < slice.experts.size(); ++e) {
          EXPECT_EQ(OnDevice(slice.experts[e].up), OnDevice(want.moe.experts[e].up)) << l << ", " << e;
          EXPECT_EQ(OnDevice(slice.experts[e].down), OnDevice(want.moe.experts[e].down)) << l << ", " << e;
          EXPECT_EQ(slice.table[e].down.codes, slice.experts[e].down.codes);
        }
        EXPECT_EQ(OnDevice(slice.shared.down), OnDevice(want.moe.shared.down)) << l;
      }
      EXPECT_EQ(OnDevice(got.layers[l].attn.whole.o_b), OnDevice((*ranks)[0].layers[l].attn.whole.o_b));
    }
    // The plan equals the arena's size: the arena has nothing to spare, and taking more would have failed.
    const Sharding sharding{.count = 1, .fixed_cuts = 2};
    const int64_t planned = UploadedBytes(ShardShapes(host_, sharding), {}, sharding.num_slices()).device;
    const int64_t of_rank = UploadedBytes(ShardShapes(host_, {.count = 2}), {}).device;
    EXPECT_GT(planned, of_rank);
    EXPECT_LT(planned, 2 * of_rank);
  }
}

TEST_F(Upload, AFileThatEndsEarlyEndsLoadingOnAllRanks) {
  Config config = test::TinyConfig();
  config.vocab_size = 32;
  Load({TestFormat::kNvfp4, TestFormat::kNvfp4}, config);
  const std::string file = temp_ / "model/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const std::unique_ptr<Device> second = std::move(Device::Open("cpu")).value();
  Device* const devices[] = {device_.get(), second.get()};
  const auto ranks = UploadRanks(devices, pool_, host_, {}, source_.get(), {}, nullptr);
  EXPECT_EQ(ranks.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(ranks.status().message(), ::testing::HasSubstr("model.safetensors"));
}

TEST_F(Upload, CancellingStops) {
  Load({TestFormat::kNvfp4, TestFormat::kNvfp4});
  const auto uploaded = UploadWeights(
      *device_, pool_, host_, {}, source_.get(), [](int64_t, int64_t) { return false; }, nullptr);
  EXPECT_EQ(uploaded.status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace dsv4::deepseek_v4
