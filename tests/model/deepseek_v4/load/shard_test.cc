// Division of a model among ranks: all slices together equal the file, and errors name tensors that cannot be divided.
#include "model/deepseek_v4/load/shard.h"

#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/load/checkpoint_builder.h"
#include "model/deepseek_v4/schema/visit_weights.h"
#include "support/quant_fixture.h"
#include "support/random.h"
#include "tensor/codec/weight.h"

namespace dsv4::test {
namespace {

using namespace deepseek_v4;

using ::testing::HasSubstr;

// The tiny model with an output matrix that two ranks can share in whole tiles.
Config TinyShared() {
  Config c = TinyConfig();
  c.vocab_size = 32;
  return c;
}

// Flash's shape, small.
Config Flashlike() {
  Config c;
  c.vocab_size = 512, c.hidden_size = 256, c.num_heads = 64, c.head_dim = 512, c.o_groups = 8, c.o_lora_rank = 1024;
  c.moe_intermediate = 2048;
  return c;
}

std::string Refusal(const Status& status) { return status.ok() ? "" : status.message(); }

TEST(CheckSharding, CountsThatDivideTheModel) {
  for (const int count : {1, 2, 4, 8}) EXPECT_EQ(Refusal(CheckSharding(Flashlike(), count)), "") << count;
}

TEST(CheckSharding, RefusesCountsThatMakeNoTree) {
  for (const int count : {0, -1, 3, 5, 6, 7, 9, 16}) {
    const Status status = CheckSharding(Flashlike(), count);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), StrCat(count, " ranks: a model is divided among 1, 2, 4 or 8"));
  }
}

TEST(CheckSharding, NamesTheFieldTheNumberAndWhatWorks) {
  Config c = Flashlike();
  c.o_groups = 4;
  EXPECT_EQ(Refusal(CheckSharding(c, 8)),
            "o_groups 4: 64 heads in 4 groups cannot be divided among 8 ranks; use 1, 2 or 4");
  c = Flashlike();
  c.moe_intermediate = 1002;
  EXPECT_EQ(Refusal(CheckSharding(c, 4)),
            "moe_intermediate_size 1002: the experts' width cannot be divided among 4 ranks; use 1 or 2");
  c = Flashlike();
  c.vocab_size = 129281;
  EXPECT_EQ(Refusal(CheckSharding(c, 2)),
            "vocab_size 129281: the output matrix cannot be divided among 2 ranks; use 1");
}

// One matrix in place of an expert's down projection, or of the output matrix.
Weights OneMatrix(const QuantTensor& m, Slice cut) {
  Weights w;
  if (cut == Slice::kRows) {
    w.head = m;
  } else {
    w.layers.resize(1);
    w.layers[0].moe.experts = {{{}, {}, m}};
  }
  return w;
}

std::string RefusedSlice(QuantCase format, int64_t rows, int64_t cols, Slice cut, int count) {
  QuantTensor m{.format = format.format, .rows = rows, .cols = cols, .scale_dtype = format.scale_dtype};
  const uint8_t byte = 0;
  m.codes = m.block_scale = &byte;
  return Refusal(CheckSharding(Flashlike(), OneMatrix(m, cut), count));
}

TEST(CheckSharding, SlicesAreWholeTilesAndBlocksOfScales) {
  const QuantCase fp8{WeightFormat::kFp8Block, DType::kF8E8M0}, mxfp4{WeightFormat::kMxfp4},
      nvfp4{WeightFormat::kNvfp4}, bf16{WeightFormat::kBf16};
  for (const int count : {2, 4, 8}) {
    for (const QuantCase& f : {fp8, mxfp4, nvfp4, bf16})
      EXPECT_EQ(RefusedSlice(f, 512, 2048, Slice::kColumns, count), "") << f.name();
    for (const QuantCase& f : {fp8, mxfp4, nvfp4, bf16})
      EXPECT_EQ(RefusedSlice(f, 512, 2048, Slice::kRows, count), "") << f.name();
  }
  EXPECT_EQ(RefusedSlice(fp8, 16, 128, Slice::kColumns, 8), "");  // parts of one block share its scale
  EXPECT_EQ(
      RefusedSlice(fp8, 16, 768, Slice::kColumns, 4),
      "layers.0.ffn.experts.0.w2.weight (FP8-128x128): a rank's 192 of 768 columns split blocks of 128 with a common "
      "scale; use fewer ranks");
  EXPECT_EQ(
      RefusedSlice(mxfp4, 16, 64, Slice::kColumns, 4),
      "layers.0.ffn.experts.0.w2.weight (MXFP4): a rank's 16 columns are fewer than the 32 that share a scale; use "
      "fewer ranks");
  EXPECT_EQ(
      RefusedSlice(mxfp4, 16, 96, Slice::kColumns, 2),
      "layers.0.ffn.experts.0.w2.weight (MXFP4): a rank's 48 of 96 columns split blocks of 32 with a common scale; "
      "use fewer ranks");
  EXPECT_EQ(RefusedSlice(nvfp4, 16, 64, Slice::kColumns, 8),
            "layers.0.ffn.experts.0.w2.weight: 64 columns cannot be divided among 8 ranks in multiples of 16; use "
            "fewer ranks");
  EXPECT_EQ(RefusedSlice(bf16, 72, 64, Slice::kRows, 4),
            "head.weight: 72 rows cannot be divided among 4 ranks in multiples of 16; use fewer ranks");
}

TEST(ShardConfig, DividesHeadsGroupsAndWidth) {
  const Config mine = ShardConfig(Flashlike(), {.rank = 3, .count = 4});
  EXPECT_EQ(mine.num_heads, 16);
  EXPECT_EQ(mine.o_groups, 2);
  EXPECT_EQ(mine.moe_intermediate, 512);
  EXPECT_EQ(mine.vocab_size, 512);
  EXPECT_EQ(mine.o_lora_rank, 1024);
}

TEST(ShardConfig, SlicesDoNotDependOnTheRanks) {
  for (const int count : {1, 2, 4, 8}) {
    const Config mine = ShardConfig(Flashlike(), {.rank = count - 1, .count = count, .fixed_cuts = 8});
    EXPECT_EQ(mine.num_heads, 8) << count;
    EXPECT_EQ(mine.moe_intermediate, 256) << count;
    EXPECT_EQ(mine.num_ranks, count);
    EXPECT_EQ(mine.num_slices(), 8 / count);
  }
}

TEST(Sharding, ASliceIsThePartOfOneOfManyRanks) {
  WeightRef of_layer{.row = &kLayerWeights[0], .layer = 3}, head{.row = &kModelWeights[0]};
  const Sharding s = {.rank = 1, .count = 2, .fixed_cuts = 8, .slice = 3};
  EXPECT_EQ(s.num_slices(), 4);
  EXPECT_EQ(s.Of(of_layer).rank, 7);
  EXPECT_EQ(s.Of(of_layer).count, 8);
  EXPECT_EQ(s.Of(head).count, 1);
  const Sharding plain = {.rank = 1, .count = 2};
  EXPECT_EQ(plain.Of(head).rank, 1);
  EXPECT_EQ(plain.Of(head).count, 2);
}

TEST(MostRanks, IsTheLargestCountThatPasses) {
  const auto most = [](int limit) {
    return MostRanks([&](int count) { return count <= limit ? Status{} : Unsupported("too many"); });
  };
  EXPECT_EQ(most(8), 8);
  EXPECT_EQ(most(4), 4);
  EXPECT_EQ(most(1), 1);
}

std::vector<float> Decoded(const QuantTensor& m) {
  std::vector<float> values(static_cast<size_t>(m.rows * m.cols));
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t k = 0; k < m.cols; ++k)
      values[static_cast<size_t>(r * m.cols + k)] = static_cast<float>(WeightValue(m, r, k));
  }
  return values;
}

// Every element of every slice equals the whole's, for every format and every begin in the scale grid.
TEST(ShardWeights, SlicesOfEveryFormatAreTheWhole) {
  Random random(1);
  ThreadPool pool(2);
  for (const QuantCase& format : AllQuantCases()) {
    for (const int64_t offset : {0, 48}) {
      if (offset != 0 && format.format != WeightFormat::kFp8Block) continue;
      const int64_t rows = 272, cols = 256;
      const QuantFixture m(random, format, rows, cols, {.scale_row_offset = offset});
      const std::vector<float> want = Decoded(m.tensor());
      for (const int count : {1, 2, 4, 8}) {
        for (const Slice cut : {Slice::kRows, Slice::kColumns}) {
          const Weights whole = OneMatrix(m.tensor(), cut);
          for (int rank = 0; rank < count; ++rank) {
            const auto mine = ShardWeights(whole, {.rank = rank, .count = count}, rank % 2 == 0 ? &pool : nullptr);
            ASSERT_TRUE(mine.ok());
            const QuantTensor& slice = cut == Slice::kRows ? mine->head : mine->layers[0].moe.experts[0].down;
            EXPECT_EQ(slice.rows, cut == Slice::kRows ? rows / count : rows);
            EXPECT_EQ(slice.cols, cut == Slice::kRows ? cols : cols / count);
            const int64_t row0 = cut == Slice::kRows ? rank * slice.rows : 0,
                          col0 = cut == Slice::kRows ? 0 : rank * slice.cols;
            const std::vector<float> got = Decoded(slice);
            int64_t wrong = 0;
            for (int64_t r = 0; r < slice.rows; ++r) {
              for (int64_t k = 0; k < slice.cols; ++k) {
                const float w = want[static_cast<size_t>((row0 + r) * cols + col0 + k)];
                wrong += std::memcmp(&w, &got[static_cast<size_t>(r * slice.cols + k)], 4) != 0;
              }
            }
            EXPECT_EQ(wrong, 0) << format.name() << ", rank " << rank << " of " << count
                                << (cut == Slice::kRows ? ", rows" : ", columns");
          }
        }
      }
    }
  }
}

class ShardModel : public ::testing::Test {
 protected:
  void Load(const Dialect& dialect) {
    std::filesystem::create_directories(temp_ / "model");
    WriteModel(temp_ / "model", TinyConfigJson(), MakeCheckpoint(TinyShared(), dialect));
    auto source = TensorSource::Open(temp_ / "model");
    ASSERT_TRUE(source.ok());
    auto bound = BindWeights(TinyShared(), std::move(source).value());
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    whole_ = std::move(bound).value();
  }
  TempDir temp_;
  Weights whole_;
};

// A whole model: divided weights are divided everywhere, the others are the same memory, and only the storage must
// outlive the slices.
TEST_F(ShardModel, WholeModelsInEveryDialect) {
  for (const TestFormat format :
       {TestFormat::kBf16, TestFormat::kFp8, TestFormat::kFp8F32Scale, TestFormat::kMxfp4, TestFormat::kNvfp4}) {
    Load({format, format});
    ASSERT_EQ(Refusal(CheckSharding(TinyShared(), whole_, 2)), "");
    std::vector<Weights> ranks;
    for (int r = 0; r < 2; ++r)
      ranks.push_back(std::move(ShardWeights(whole_, {.rank = r, .count = 2}, nullptr)).value());
    std::set<std::string> cut_parts;
    for (int r = 0; r < 2; ++r) {
      std::vector<const QuantTensor*> wholes;
      VisitWeights(
          whole_, [&](const QuantTensor& m, bool) { wholes.push_back(&m); }, [](const Tensor&) {});
      size_t i = 0;
      VisitNamedWeights(
          ranks[static_cast<size_t>(r)],
          [&](const WeightRef& ref, const QuantTensor& m) {
            const QuantTensor& w = *wholes[i++];
            if (!w) return;
            const Slice cut = SliceOf(ref.row->cut);
            EXPECT_EQ(m.rows, cut == Slice::kRows ? w.rows / 2 : w.rows) << ref.Name();
            EXPECT_EQ(m.cols, cut == Slice::kColumns ? w.cols / 2 : w.cols) << ref.Name();
            if (cut == Slice::kWhole) {
              EXPECT_EQ(m.codes, w.codes) << ref.Name();
            }
            if (cut != Slice::kWhole) cut_parts.insert(std::string(ref.row->official));
            const std::vector<float> all = Decoded(w), mine = Decoded(m);
            const int64_t row0 = cut == Slice::kRows ? r * m.rows : 0, col0 = cut == Slice::kColumns ? r * m.cols : 0;
            for (int64_t row = 0; row < m.rows; ++row) {
              ASSERT_EQ(std::memcmp(mine.data() + row * m.cols, all.data() + (row0 + row) * w.cols + col0,
                                    static_cast<size_t>(m.cols) * 4),
                        0)
                  << ref.Name() << " row " << row;
            }
          },
          [](const WeightRef&, const Tensor&) {});
    }
    EXPECT_EQ(cut_parts.size(), 10u);  // all of the table except the vector
  }
}

TEST_F(ShardModel, SinksFollowTheirHeads) {
  Load(kModelOpt);
  for (int r = 0; r < 2; ++r) {
    const auto mine = ShardWeights(whole_, {.rank = r, .count = 2}, nullptr);
    for (size_t l = 0; l < whole_.layers.size(); ++l) {
      const Tensor &all = whole_.layers[l].attn.sink, &part = mine->layers[l].attn.sink;
      ASSERT_EQ(part.dim(0), all.dim(0) / 2);
      EXPECT_EQ(part.f32(), all.f32() + r * part.dim(0));
    }
  }
}

// For prompts a rank also has all heads.
TEST_F(ShardModel, WhatBelongsToHeadsIsThereTwice) {
  Load(kModelOpt);
  const auto mine = ShardWeights(whole_, {.rank = 1, .count = 2}, nullptr);
  const Weights shapes = ShardShapes(whole_, {.count = 2});
  for (size_t l = 0; l < whole_.layers.size(); ++l) {
    const AttentionWeights &all = whole_.layers[l].attn, &part = mine->layers[l].attn;
    EXPECT_FALSE(all.whole.q_b);
    EXPECT_EQ(part.whole.q_b.codes, all.q_b.codes);
    EXPECT_EQ(part.whole.o_b.cols, all.o_b.cols);
    EXPECT_EQ(part.whole.sink.dim(0), all.sink.dim(0));
    EXPECT_EQ(shapes.layers[l].attn.whole.o_a.rows, all.o_a.rows);
    const AttentionWeights with = WithAllHeads(part);
    EXPECT_EQ(with.q_b.rows, 2 * part.q_b.rows);
    EXPECT_EQ(Decoded(with.o_b), Decoded(all.o_b));
  }
}

// The inputs of the plan: all ranks together read divided weights once, and the others n times.
TEST_F(ShardModel, BytesOfRanks) {
  Load(kModelOpt);
  EXPECT_EQ(ShardCopyBytes(whole_, {}), 0);
  int64_t cut = 0, columns = 0;
  VisitNamedWeights(
      whole_,
      [&](const WeightRef& ref, const QuantTensor& m) {
        if (m && SliceOf(ref.row->cut) != Slice::kWhole && !IsKeptWhole(ref.row->cut)) cut += m.rows * m.row_bytes();
        if (m && SliceOf(ref.row->cut) == Slice::kColumns) columns += m.rows * m.row_bytes();
      },
      [](const WeightRef&, const Tensor&) {});
  const int64_t one = ShardFileBytes(whole_, 1), two = ShardFileBytes(whole_, 2);
  EXPECT_LE(one - two, cut / 2 + cut / 8);  // scales are an eighth of FP4 codes
  EXPECT_GE(one - two, cut / 2);
  EXPECT_GE(ShardCopyBytes(whole_, {.count = 2}), columns / 2);
  EXPECT_LE(ShardCopyBytes(whole_, {.count = 2}), columns / 2 + columns / 8);
}

// One rank with slices has the parts of several ranks, and the whole output matrix.
TEST_F(ShardModel, JoinedSlicesLieInOrder) {
  Load(kModelOpt);
  std::vector<Weights> slices;
  Sharding s{.count = 1, .fixed_cuts = 2};
  for (; s.slice < s.num_slices(); ++s.slice) slices.push_back(std::move(ShardWeights(whole_, s, nullptr)).value());
  const Weights joined = JoinSlices(std::move(slices));
  EXPECT_EQ(joined.head.rows, whole_.head.rows);
  for (int r = 0; r < 2; ++r) {
    const auto mine = ShardWeights(whole_, {.rank = r, .count = 2}, nullptr);
    for (size_t l = 0; l < whole_.layers.size(); ++l) {
      const LayerWeights &got = joined.layers[l], &want = mine->layers[l];
      const auto at = static_cast<size_t>(r);
      EXPECT_EQ(Decoded(got.attn.slices[at].o_b), Decoded(want.attn.o_b));
      EXPECT_EQ(got.attn.slices[at].sink.f32(), want.attn.sink.f32());
      EXPECT_EQ(Decoded(got.moe.slices[at].experts[0].down), Decoded(want.moe.experts[0].down));
      EXPECT_EQ(Decoded(got.moe.slices[at].shared.gate), Decoded(want.moe.shared.gate));
    }
  }
}

TEST_F(ShardModel, TheWholeMayGo) {
  Load(kOfficial);
  auto mine = ShardWeights(whole_, {.rank = 1, .count = 2}, nullptr);
  const std::vector<float> before = Decoded(mine->head);
  whole_ = {};
  EXPECT_EQ(Decoded(mine->head), before);
}

}  // namespace
}  // namespace dsv4::test
