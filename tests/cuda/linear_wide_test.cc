// 17 or more decode rows are one launch per format on Hopper (ops/linear/wide), with the same bits as rows alone.
#include "ops/linear/wide/wide_linear.h"

#include <algorithm>
#include <limits>
#include <span>

#include "ops/linear/linear.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4 {
void LinearCuda(const ExecContext& ctx, const LinearArgs& args);
}

namespace dsv4::test {
namespace {

const QuantCase kN{WeightFormat::kNvfp4}, kM{WeightFormat::kMxfp4}, kB{WeightFormat::kBf16},
    kF{WeightFormat::kFp8Block, DType::kF32}, kE{WeightFormat::kFp8Block, DType::kF8E8M0};

struct WideCase {
  int64_t k;
  std::vector<std::pair<QuantCase, int64_t>> parts;  // format, rows
  int64_t groups = 1;
};

// Weights and x of a case on the GPU, x with `bad` somewhere in some rows. Run returns each matrix's rows of tokens
// [first, first + count).
class WideFixture {
 public:
  WideFixture(Random& random, const WideCase& c, int64_t num_tokens, const std::vector<int64_t>& bad_rows = {},
              float bad = 0)
      : c_(c),
        x_({num_tokens, c.groups * c.k}, random.Normals(num_tokens * c.groups * c.k)),
        norm_({c.k}, random.Normals(c.k)) {
    for (const int64_t row : bad_rows) x_.data()[row * c.groups * c.k + 5] = bad;
    for (const auto& [kind, rows] : c.parts)
      weights_.emplace_back(random, kind, rows, c.k, QuantOptions{.unaligned = false});
    in_ = gpu_.In(x_.tensor());
    norm_in_ = gpu_.In(norm_.tensor());
    for (const QuantFixture& w : weights_) packed_.push_back(gpu_.Weight(w.tensor()));
  }

  std::vector<std::vector<float>> Run(int64_t first, int64_t count, bool norm) {
    const int64_t width = c_.groups * c_.k;
    Mirror gpu;
    LinearArgs args{.x = {static_cast<float*>(in_.data) + first * width, DType::kF32, {count, width}},
                    .groups = c_.groups,
                    .norm_eps = 1e-6f};
    if (norm) args.norm = norm_in_;
    std::vector<std::unique_ptr<GuardBuffer<float>>> y;
    for (size_t i = 0; i < packed_.size(); ++i) {
      y.push_back(std::make_unique<GuardBuffer<float>>(Shape{count, c_.parts[i].second}));
      args.parts.Add({.w = packed_[i], .y = gpu.Out(y.back()->tensor())});
    }
    LinearCuda(gpu.ctx(), args);
    gpu.Finish();
    std::vector<std::vector<float>> values;
    for (const auto& part : y) values.push_back(part->values());
    return values;
  }

  // The same with few rows at a time, which TileLinear computes.
  std::vector<std::vector<float>> RunFew(int64_t count, bool norm) {
    std::vector<std::vector<float>> all(packed_.size());
    for (int64_t first = 0; first < count; first += 16) {
      const auto some = Run(first, std::min<int64_t>(16, count - first), norm);
      for (size_t i = 0; i < all.size(); ++i) all[i].insert(all[i].end(), some[i].begin(), some[i].end());
    }
    return all;
  }

  void ExpectRows(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& want,
                  int64_t count, const char* what) const {
    for (size_t i = 0; i < got.size(); ++i) {
      const auto size = static_cast<size_t>(count * c_.parts[i].second);
      EXPECT_TRUE(BitEqual(got[i], std::span(want[i]).first(size)))
          << "K " << c_.k << " T " << count << " part " << i << ", " << c_.parts[i].first.name() << ", " << what;
    }
  }

 private:
  WideCase c_;
  Mirror gpu_;
  GuardBuffer<float> x_, norm_;
  std::vector<QuantFixture> weights_;
  Tensor in_, norm_in_;
  std::vector<QuantTensor> packed_;
};

void ExpectBitsOfFewRows(Random& random, const WideCase& c, std::initializer_list<int64_t> counts) {
  const int64_t most = std::max(counts);
  WideFixture fixture(random, c, most);
  for (const bool norm : {false, true}) {
    if (norm && c.groups > 1) continue;
    const auto few = fixture.RunFew(most, norm);
    for (const int64_t count : counts)
      fixture.ExpectRows(fixture.Run(0, count, norm), few, count, norm ? "normed" : "as it is");
  }
}

TEST(CudaLinearWide, TakesMoreThanOneLaunchOfFew) {
  const ExecContext hopper{.gpu = {.arch = 90}}, other{.gpu = {.arch = 100}};
  EXPECT_FALSE(WideLinearTakes(hopper, 16));
  EXPECT_TRUE(WideLinearTakes(hopper, 17));
  EXPECT_FALSE(WideLinearTakes(other, 17));
  ExecContext exact = hopper;
  exact.f32_inputs = true;
  EXPECT_FALSE(WideLinearTakes(exact, 17));
}

// Flash's and Pro's matrices: the router, projections together, o_a's groups, o_b, the shared expert, a part of q_b and
// of the head, whose K is not divided.
TEST(CudaLinearWide, RowsHaveTheBitsOfFewerRows) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const WideCase& c : {WideCase{4096, {{kB, 256}, {kN, 2048}, {kN, 2048}}},
                            WideCase{4096, {{kN, 1024}, {kN, 512}, {kB, 1024}, {kB, 64}}},
                            WideCase{4096, {{kN, 2048}}, 2}, WideCase{8192, {{kN, 4096}}}, WideCase{2048, {{kF, 4096}}},
                            WideCase{1024, {{kN, 17000}}}, WideCase{7168, {{kF, 130}, {kM, 64}, {kN, 33}, {kB, 40}}}}) {
    ExpectBitsOfFewRows(random, c, {17, 24, 32, 33, 40, 47, 48, 49, 63, 64, 65, 80, 96, 97, 127, 128});
  }
}

// K that ends inside a tile, a single tile, odd numbers of tiles, groups that do not begin with a row tile or end with
// 128 rows, several formats: fast under compute-sanitizer.
TEST(CudaLinearWide, OddShapesShort) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  for (const QuantCase& kind : {kN, kM, kF, kE, kB}) {
    ExpectBitsOfFewRows(random, {192, {{kind, 130}}}, {33});
    ExpectBitsOfFewRows(random, {1056, {{kind, 20}}}, {17, 65});
    ExpectBitsOfFewRows(random, {96, {{kind, 254}}, 2}, {19, 40});
  }
  ExpectBitsOfFewRows(random, {32, {{kN, 7}, {kB, 1}}}, {29, 47, 50});
  ExpectBitsOfFewRows(random, {192, {{kN, 7}, {kF, 40}, {kB, 16}, {kM, 1}, {kN, 90}, {kB, 12}}}, {64});
}

// More rows than one launch computes.
TEST(CudaLinearWide, HundredsOfRows) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  ExpectBitsOfFewRows(random, {512, {{kN, 300}, {kB, 40}}}, {1100});
}

// Rings and counters are reset each time, and nothing depends on the order of the blocks.
TEST(CudaLinearWide, TheSameBitsInEveryLaunch) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  for (const WideCase& c : {WideCase{4096, {{kN, 1536}}}, WideCase{8192, {{kF, 500}}}, WideCase{1024, {{kB, 3000}}}}) {
    WideFixture fixture(random, c, 128);
    const auto first = fixture.Run(0, 128, false);
    for (int i = 0; i < 30; ++i) fixture.ExpectRows(fixture.Run(0, 128, false), first, 128, "again");
  }
}

// Infinities, NaNs and values outside BF16's range stay in their rows.
TEST(CudaLinearWide, RowsDoNotMixShort) {
  DSV4_GPU_OR_SKIP();
  const int64_t num_tokens = 70, k = 192;
  const WideCase c{k, {{kN, 40}, {kF, 17}}};
  Random random(5);
  const auto want = WideFixture(random, c, num_tokens).Run(0, num_tokens, false);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    Random same(5);
    const auto got = WideFixture(same, c, num_tokens, {3, 40, 69}, bad).Run(0, num_tokens, false);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto rows = static_cast<size_t>(c.parts[i].second);
      for (size_t t = 0; t < static_cast<size_t>(num_tokens); ++t) {
        const auto row_of = [&](const std::vector<float>& part) { return std::span(part).subspan(t * rows, rows); };
        const bool equal = BitEqual(row_of(got[i]), row_of(want[i]));
        EXPECT_EQ(equal, t != 3 && t != 40 && t != 69) << "token " << t << " part " << i << " with " << bad;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
