#include "kv/layout.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/random.h"

namespace dsv4 {
namespace {

using test::FullKvSpec;
using test::Random;
using test::TinyKvSpec;

struct Region {
  int64_t begin, end;
};

void ExpectDisjoint(std::vector<Region> regions, int64_t size) {
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
  int64_t free = 0;
  for (const Region& r : regions) {
    EXPECT_GE(r.begin, free);
    EXPECT_EQ(r.begin % 64, 0);
    EXPECT_LT(r.begin, r.end);
    free = r.end;
  }
  EXPECT_LE(free, size);
}

std::vector<KvSpec> Specs() {
  std::vector<KvSpec> specs;
  for (const KvDtype kv : {KvDtype::kFp8, KvDtype::kBf16, KvDtype::kF32}) {
    for (const IndexDtype index : {IndexDtype::kFp4, IndexDtype::kBf16, IndexDtype::kF32}) {
      specs.push_back(TinyKvSpec({0, 4, 128, 4, 0, 128}, kv, index));
      specs.push_back(FullKvSpec({128, 128, 4, 128, 4}, kv, index));
    }
  }
  return specs;
}

TEST(KvLayout, RegionsAreAlignedAndNeverOverlap) {
  for (const KvSpec& spec : Specs()) {
    const KvLayout layout = MakeKvLayout(spec);
    std::vector<Region> fixed, page;
    for (const LayerLayout& layer : layout.layers) {
      fixed.push_back({layer.window_offset, layer.window_offset + layer.window_slots * layer.window_row.row_bytes()});
      for (const CompressorLayout* c : {&layer.main, &layer.index}) {
        if (c->ratio == 0) continue;
        fixed.push_back({c->state_offset, c->state_offset + c->state_floats() * 4});
        page.push_back({c->rows_offset, c->rows_offset + c->rows_per_page * c->row.row_bytes()});
        EXPECT_EQ(c->rows_per_page * c->ratio, layout.page_tokens);
      }
    }
    ExpectDisjoint(fixed, layout.fixed_bytes);
    ExpectDisjoint(page, layout.page_bytes);
  }
}

TEST(KvLayout, LayerKindsHaveTheirCompressors) {
  const KvLayout layout = MakeKvLayout(FullKvSpec({0, 4, 128}));
  EXPECT_EQ(layout.layers[0].main.ratio, 0);
  EXPECT_EQ(layout.layers[0].index.ratio, 0);
  EXPECT_EQ(layout.layers[1].main.ratio, 4);
  EXPECT_EQ(layout.layers[1].main.overlap, 2);
  EXPECT_EQ(layout.layers[1].main.dim, 512);
  EXPECT_EQ(layout.layers[1].index.ratio, 4);
  EXPECT_EQ(layout.layers[1].index.dim, 128);
  EXPECT_EQ(layout.layers[1].index.row.row_bytes(), 68);
  EXPECT_EQ(layout.layers[2].main.ratio, 128);
  EXPECT_EQ(layout.layers[2].main.overlap, 1);
  EXPECT_EQ(layout.layers[2].index.ratio, 0);
  EXPECT_EQ(MakeKvLayout(FullKvSpec({0, 0})).page_bytes, 0);
}

// docs/dev/formats.md, 5: the tokens that a row pools, and the tokens that can be removed.
TEST(KvLayout, StateBytesOfTheReleasedModels) {
  KvSpec spec = FullKvSpec({4, 128});
  spec.spare_slots = 0;
  const KvLayout layout = MakeKvLayout(spec);
  EXPECT_EQ(layout.layers[0].main.state_floats() * 4, 65536);
  EXPECT_EQ(layout.layers[0].index.state_floats() * 4, 16384);
  EXPECT_EQ(layout.layers[1].main.state_floats() * 4, 524288);

  const auto state_bytes = [](const std::vector<int64_t>& ratios, int64_t spare_slots) {
    KvSpec of_model = FullKvSpec(ratios);
    of_model.spare_slots = spare_slots;
    int64_t bytes = 0;
    for (const LayerLayout& l : MakeKvLayout(of_model).layers) {
      bytes += 4 * (l.main.state_floats() + l.index.state_floats());
    }
    return bytes;
  };
  std::vector<int64_t> flash = {0, 0}, pro = {128, 128};
  for (int i = 0; i < 20; ++i) flash.insert(flash.end(), {4, 128});
  for (int i = 0; i < 29; ++i) pro.insert(pro.end(), {4, 128});
  flash.push_back(4);
  pro.push_back(4);
  EXPECT_EQ(flash.size(), 43u);
  EXPECT_EQ(pro.size(), 61u);
  EXPECT_EQ(state_bytes(flash, 0), 12206080);
  EXPECT_EQ(state_bytes(pro, 0), 18710528);
  EXPECT_EQ(state_bytes(flash, kSpareSlots), 14581760);
  EXPECT_EQ(state_bytes(pro, kSpareSlots), 22183936);
}

TEST(KvLayoutDeathTest, RefusesRatiosThatDoNotDivideAPage) {
  EXPECT_DEATH((void)MakeKvLayout(TinyKvSpec({3})), "ratio 3");
}

// Every slot of every layer is written with its own numbers, then everything is read back: any overlap or wrong address
// becomes visible.
TEST(CacheView, EverySlotHoldsItsOwnNumbers) {
  for (const KvSpec& spec : {TinyKvSpec({0, 4, 128}), TinyKvSpec({4, 128}, KvDtype::kF32, IndexDtype::kF32)}) {
    test::CacheFixture cache(spec, {{0, 600}, {0, 0}, {0, 257}});
    for (const bool writing : {true, false}) {
      Random random(5);
      const auto visit = [&](const RowArray& rows, int64_t index) {
        std::vector<float> x = random.Normals(rows.format.dim);
        if (writing) {
          rows.Write(index, x.data());
          return;
        }
        RoundRow(rows.format, x.data());
        std::vector<float> y(x.size());
        rows.Read(index, y.data());
        EXPECT_TRUE(test::BitEqual(y, x));
      };
      for (size_t l = 0; l < cache.layout().layers.size(); ++l) {
        const CacheView view = cache.View(l);
        for (const SequenceView& seq : cache.sequences()) {
          for (int64_t i = 0; i < view.layer->window_slots; ++i) visit(view.window_rows(seq), i);
          for (const CompressorLayout* c : {&view.layer->main, &view.layer->index}) {
            if (c->ratio == 0) continue;
            for (int64_t w = 0; w < (seq.end - seq.begin) / c->ratio; ++w) {
              const RowSlot slot = EmittedRow(*c, seq, w);
              EXPECT_EQ(slot.index, w % c->rows_per_page);
              visit(slot.rows, slot.index);
            }
            for (int64_t p = 0; p < c->num_slots; ++p) {
              const std::vector<float> x = random.Normals(2 * c->overlap * c->dim);
              float* state = StateRow(*c, seq, p + 5 * c->num_slots);
              if (writing)
                std::copy(x.begin(), x.end(), state);
              else
                EXPECT_TRUE(test::BitEqual(std::vector<float>(state, state + x.size()), x));
            }
          }
        }
      }
    }
  }
}

TEST(CacheView, RowsOfAStepKnowTheirSequenceAndPosition) {
  test::CacheFixture cache(TinyKvSpec({4}), {{10, 2}, {0, 0}, {7, 1}});
  const CacheView view = cache.View(0);
  ASSERT_EQ(view.num_tokens, 3);
  EXPECT_EQ(cache.positions(), (std::vector<int64_t>{10, 11, 7}));
  EXPECT_EQ(view.sequence(1).start, 10);
  EXPECT_EQ(view.sequence(2).start, 7);
  EXPECT_EQ(view.sequence(2).begin, 2);
  EXPECT_EQ(view.sequences[1].begin, view.sequences[1].end);
}

}  // namespace
}  // namespace dsv4
