// The order of block scales for Blackwell's tensor cores, and unpacking of tiles: facts, without a GPU.
#include "ops/linear/block_scaled/block_scaled.h"

#include <cstring>
#include <set>

#include <gtest/gtest.h>
#include "ops/pack_weight/pack_weight.h"
#include "support/quant_fixture.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

TEST(BlockScaled, EveryScaleHasAByteOfItsOwn) {
  for (const auto& [rows, blocks] : {std::pair{256, 12}, {128, 4}, {1, 1}, {129, 5}, {384, 64}}) {
    std::set<int64_t> seen;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < blocks; ++c) seen.insert(BlockScaleOffset(r, c, blocks));
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), int64_t{rows} * blocks);
    EXPECT_GE(*seen.begin(), 0);
    EXPECT_LT(*seen.rbegin(), BlockScaleBytes(rows, blocks));
  }
  EXPECT_EQ(BlockScaleBytes(256, 12), 256 * 12);  // whole atoms: a permutation
  EXPECT_EQ(BlockScaleBytes(129, 5), 256 * 8);
}

// CUTLASS: atoms ((32, 4), (16, 4)) with strides ((16, 4), (0, 1)), the atoms of a row one after the other.
TEST(BlockScaled, TheOrderIsTheDocumentedOne) {
  const auto at = [](int64_t row, int64_t block) { return BlockScaleOffset(row, block, 12); };
  EXPECT_EQ(at(0, 0), 0);
  EXPECT_EQ(at(0, 3), 3);   // four blocks of a row are adjacent
  EXPECT_EQ(at(1, 0), 16);  // rows 0 .. 31 sixteen bytes apart
  EXPECT_EQ(at(32, 0), 4);  // rows 32, 64, 96 between them
  EXPECT_EQ(at(127, 3), 511);
  EXPECT_EQ(at(0, 4), 512);  // the next four blocks: the next atom
  EXPECT_EQ(at(128, 0), 3 * 512);
}

TEST(BlockScaled, UnpackingATileGivesTheCodesBack) {
  Random random(1);
  const QuantFixture fixture(random, {WeightFormat::kNvfp4}, 32, 128);
  const QuantTensor& w = fixture.tensor();
  std::vector<uint8_t> tiles(static_cast<size_t>(PackedCodeBytes(w)));
  PackWeight({}, {.w = w, .codes = tiles.data(), .block_scale = nullptr});
  for (int64_t row = 0; row < 32; ++row) {
    for (int64_t k = 0; k < 128; k += 16) {
      const int64_t tile = row / 16 * 2 + k / 64, lane = row % 8 * 4 + k % 64 / 16;
      const uint8_t* from = tiles.data() + tile * TileBytes(WeightFormat::kNvfp4);
      uint32_t words[2];
      uint64_t want = 0;
      std::memcpy(words, from + 16 * lane + row % 16 / 8 * 8, 8);
      std::memcpy(&want, w.codes + row * 64 + k / 2, 8);
      const uint8_t scale = w.block_scale[row * 8 + k / 16];
      EXPECT_EQ(E4m3OfTileScale(from[512 + 2 * lane + row % 16 / 8]), scale);
      EXPECT_EQ(UnplaceFp4(words[0], words[1]), CodesUnderScale(want, scale)) << row << " " << k;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
