#include "ops/gather_shares/gather_shares.h"

#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/guard_buffer.h"
#include "support/random.h"
#include "support/ranks.h"
#include "tensor/quant_tensor.h"

namespace dsv4::test {
namespace {

GatherSharesArgs SharesOfRows(const ExecContext& ctx, std::initializer_list<Tensor> values, int64_t site = 0) {
  GatherSharesArgs args{.site = site};
  for (const Tensor& rows : values) args.AddRows(ctx, rows);
  return args;
}

// Several values at once, of numbers and of ids.
TEST(GatherShares, GivesEveryRankAllRows) {
  Random random(1);
  for (const int count : {2, 4, 8}) {
    // Numbers of rows with which some ranks have none, and shares of several sizes.
    for (const Shape shape : {Shape{1, 1}, Shape{7, 3}, Shape{8, 5}, Shape{9, 64}, Shape{61, 17}, Shape{129, 33}}) {
      std::vector<std::unique_ptr<GuardBuffer<float>>> y;
      std::vector<std::unique_ptr<GuardBuffer<int32_t>>> ids;
      std::vector<float> want;
      std::vector<int32_t> want_ids;
      for (int p = 0; p < count; ++p) {
        std::vector<float> part = random.Hostiles(shape.num_elements());
        part[0] = std::nanf("");
        const RankShare share = ShareOf(shape[0], p, count, kShareRows);
        want.insert(want.end(), part.begin() + share.begin * shape[1], part.begin() + share.end * shape[1]);
        want_ids.insert(want_ids.end(), static_cast<size_t>(share.end - share.begin), p);
        y.push_back(std::make_unique<GuardBuffer<float>>(shape, part));
        ids.push_back(std::make_unique<GuardBuffer<int32_t>>(Shape{shape[0]},
                                                             std::vector<int32_t>(static_cast<size_t>(shape[0]), p)));
      }
      Exchange exchange(count, {.timeout_s = 60});
      RunRanks(exchange, [&](const ExecContext& mine, int r) {
        const auto at = static_cast<size_t>(r);
        const GatherSharesArgs args = SharesOfRows(mine, {y[at]->tensor(), Tensor{}, ids[at]->tensor()}, 2);
        EXPECT_EQ(args.num_values, 2);
        EXPECT_EQ(ShareExchanges(mine, args), 1);
        GatherShares(mine, args);
      });
      EXPECT_TRUE(exchange.status().ok());
      for (auto& got : y) EXPECT_TRUE(BitEqual(got->span(), want)) << count << " ranks, " << shape.ToString();
      for (auto& got : ids) EXPECT_EQ(got->values(), want_ids) << count << " ranks, " << shape.ToString();
    }
  }
}

// Blocks of 8 rows x 64 columns, column by column: of the rank's own rows, and of all.
TEST(GatherShares, BlocksGoToTheirPlaces) {
  const int64_t d = 192, columns = d / 64;
  for (const int count : {2, 4, 8}) {
    for (const int64_t rows : {1, 8, 20, 64, 137}) {
      const int64_t blocks = CeilDiv(rows, 8);
      const auto name = [](int64_t column, int64_t block, int64_t i) {
        return static_cast<float>((column * 100 + block) * 1000 + i);
      };
      std::vector<float> want;
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t b = 0; b < blocks; ++b)
          for (int64_t i = 0; i < 256; ++i) want.push_back(name(c, b, i));
      std::vector<std::unique_ptr<GuardBuffer<float>>> own, all;
      for (int p = 0; p < count; ++p) {
        const RankShare share = ShareOf(rows, p, count, kShareRows);
        const int64_t first = share.begin / 8, end = CeilDiv(share.end, 8);
        std::vector<float> mine;
        for (int64_t c = 0; c < columns; ++c)
          for (int64_t b = first; b < end; ++b)
            for (int64_t i = 0; i < 256; ++i) mine.push_back(name(c, b, i));
        own.push_back(std::make_unique<GuardBuffer<float>>(Shape{static_cast<int64_t>(mine.size())}, mine));
        all.push_back(std::make_unique<GuardBuffer<float>>(Shape{blocks * columns * 256}));
      }
      Exchange exchange(count, {.timeout_s = 60});
      RunRanks(exchange, [&](const ExecContext& mine, int r) {
        GatherSharesArgs args;
        args.AddBlocks(reinterpret_cast<const uint8_t*>(own[static_cast<size_t>(r)]->span().data()),
                       reinterpret_cast<uint8_t*>(all[static_cast<size_t>(r)]->tensor().data), rows, d);
        GatherShares(mine, args);
      });
      EXPECT_TRUE(exchange.status().ok());
      for (auto& got : all) EXPECT_TRUE(BitEqual(got->span(), want)) << count << " ranks, " << rows << " rows";
    }
  }
}

// Without links, or without ranks, nothing is sent early; GatherShares then sends everything.
TEST(GatherShares, ThreadsSendNothingEarly) {
  Exchange exchange(2, {.timeout_s = 60});
  std::vector<std::vector<float>> y(2, std::vector<float>(16 * 3));
  RunRanks(exchange, [&](const ExecContext& mine, int r) {
    auto& values = y[static_cast<size_t>(r)];
    std::fill(values.begin(), values.end(), static_cast<float>(r));
    GatherSharesArgs shares = SharesOfRows(mine, {{values.data(), DType::kF32, {16, 3}}});
    SendShares(mine, shares);
    EXPECT_FALSE(shares.sent);
    GatherShares(mine, shares);
  });
  for (const auto& values : y) {
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i < 24 ? 0 : 1);
  }
  GatherSharesArgs alone = SharesOfRows({}, {{y[0].data(), DType::kF32, {16, 3}}});
  SendShares({}, alone);
  EXPECT_FALSE(alone.sent);
}

TEST(GatherShares, OneRankHasThemAll) {
  GuardBuffer<float> y({2, 3}, {1, 2, 3, 4, 5, 6});
  GatherShares({}, SharesOfRows({}, {y.tensor()}));
  const RankShare rows = RowsOfRank({}, 2);
  EXPECT_EQ(rows.begin, 0);
  EXPECT_EQ(rows.end, 2);
}

TEST(GatherShares, AFailedExchangeLetsEverybodyPass) {
  Exchange exchange(2, {.timeout_s = 0});
  exchange.Fail(Internal("a test"));
  GuardBuffer<float> y({16, 8}, std::vector<float>(128, 1.0f));
  const ExecContext ctx{.ranks = &exchange.view(1)};
  GatherShares(ctx, SharesOfRows(ctx, {y.tensor()}));
  EXPECT_EQ(exchange.status().message(), "a test");
}

// All ranks count the same number of collectives for the arrays of a GPU's exchange: in chunks; each value begins a new
// chunk.
TEST(GatherShares, CountsExchangesByTheLongestShare) {
  RankView view{.count = 2, .memory = {.bulk_floats = 4096}};
  const ExecContext ctx{.ranks = &view};
  const auto rows = [&](int64_t n, int64_t width) { return Tensor{&view, DType::kF32, {n, width}}; };
  const auto count = [&](std::initializer_list<Tensor> all) { return ShareExchanges(ctx, SharesOfRows(ctx, all)); };
  EXPECT_EQ(count({rows(0, 64)}), 0);
  EXPECT_EQ(count({rows(1, 64)}), 1);
  EXPECT_EQ(count({rows(128, 64)}), 1);
  EXPECT_EQ(count({rows(129, 64)}), 2);  // 64 and 65 rows
  EXPECT_EQ(count({rows(128, 64), rows(128, 1)}), 2);
  EXPECT_EQ(count({rows(8192, 4096)}), 4096);
  GatherSharesArgs sent = SharesOfRows(ctx, {rows(8192, 4096)});
  sent.sent = true;
  EXPECT_EQ(ShareExchanges(ctx, sent), 0);
  view.memory = {.elements = 4096};  // transport kEvents
  EXPECT_EQ(count({rows(128, 64), rows(129, 64)}), 3);
}

}  // namespace
}  // namespace dsv4::test
