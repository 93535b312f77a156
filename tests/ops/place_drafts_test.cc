#include "ops/place_drafts/place_drafts.h"

#include <gtest/gtest.h>

#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void PlaceDraftsOnGpu(const ExecContext&, const PlaceDraftsArgs& a) {
  Mirror gpu;
  const int64_t s = a.drafted.dim(1);
  std::vector<KnownDraft> known(a.known, a.known + s);
  for (KnownDraft& k : known) {
    if (k.count > 0) k.tokens = gpu.In({const_cast<int32_t*>(k.tokens), DType::kI32, {k.count}}).i32();
  }
  const Tensor rows{known.data(), DType::kU8, {s * static_cast<int64_t>(sizeof(KnownDraft))}};
  PlaceDrafts(gpu.ctx(), {.drafted = gpu.In(a.drafted),
                          .positions = gpu.In(a.positions),
                          .known = static_cast<const KnownDraft*>(gpu.In(rows).data),
                          .tokens = gpu.Out(a.tokens)});
  gpu.Finish();
}

// Rows after the sequences' are padding rows. The first row of each sequence already has its token.
DSV4_DEVICE_TEST(PlaceDrafts, PutsDraftsBehindTheNextToken) {
  for (const auto& at : Places(on, PlaceDrafts, PlaceDraftsOnGpu)) {
    GuardBuffer<int32_t> drafted({2, 2}, {5, 6, -1, 8}), tokens({8}, {1, 0, 0, 2, 0, 0, -4, -4});
    GuardBuffer<int64_t> positions({8}, {10, 11, 12, 70, 71, 72, 0, 0});
    const std::vector<KnownDraft> known(2);
    at.run({.drafted = drafted.tensor(),
            .positions = positions.tensor(),
            .known = known.data(),
            .tokens = tokens.tensor()});
    EXPECT_EQ(tokens.values(), (std::vector<int32_t>{1, 5, 0, 2, 6, 8, -4, -4})) << at.name;
  }
}

DSV4_DEVICE_TEST(PlaceDrafts, TakesWhatIsKnown) {
  for (const auto& at : Places(on, PlaceDrafts, PlaceDraftsOnGpu)) {
    GuardBuffer<int32_t> drafted({3, 1}, {5, 6, 7}), text({4}, {91, 92, 93, 94});
    for (const auto& [from, want] : {std::pair<int64_t, std::vector<int32_t>>{9, {1, 93, 94, 7}},
                                     {11, {1, 91, 92, 93}},
                                     {13, {1, 5, 6, 91}},
                                     {14, {1, 5, 6, 7}},
                                     {5, {1, 5, 6, 7}}}) {
      GuardBuffer<int32_t> tokens({4}, {1, 0, 0, 0});
      GuardBuffer<int64_t> positions({4}, {10, 11, 12, 13});
      const KnownDraft known{.tokens = text.data(), .from = from, .count = 4};
      at.run(
          {.drafted = drafted.tensor(), .positions = positions.tensor(), .known = &known, .tokens = tokens.tensor()});
      EXPECT_EQ(tokens.values(), want) << at.name << " from " << from;
    }
  }
}

}  // namespace
}  // namespace dsv4::test
