// The bridge of two sublayers, its outputs and sizes, for the tests of hc_pre, hc_post, hc_head and hc_bridge.
#pragma once

#include <vector>

#include "ops/hc_pre/hc_pre.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"

namespace dsv4::test {

struct HcCase {
  int64_t t, h, d;
  std::string name() const { return StrCat("T ", t, " H ", h, " D ", d); }
};

// Small sizes, odd sizes, sizes of the released models; more tokens than a GPU's block processes at once.
inline const std::vector<HcCase> kHcCases = {{1, 4, 256},   {1, 1, 5},      {3, 4, 33},     {17, 2, 24},  {40, 4, 64},
                                             {2, 8, 16},    {67, 3, 7},     {1, 4, 4096},   {2, 4, 7168}, {9, 4, 4096},
                                             {3, 4, 2048},  {2, 4, 8196},   {5, 5, 100},    {1, 6, 1000}, {1, 7, 64},
                                             {131, 4, 128}, {300, 4, 1024}, {150, 4, 4096}, {90, 4, 7168}};

struct HcSite {
  HcSite(Random& random, WeightFormat format, const HcCase& c, int64_t rows, int64_t num_scales)
      : streams({c.t, c.h, c.d}, random.Normals(c.t * c.h * c.d)),
        fn(random, {format}, rows, c.h * c.d),
        base({rows}, random.Normals(rows)),
        scale({num_scales}, num_scales == 1 ? std::vector<float>{0.05f} : std::vector<float>{0.05f, 0.03f, 0.08f}) {}
  GuardBuffer<float> streams;
  QuantFixture fn;
  GuardBuffer<float> base, scale;
};

struct HcOutputs {
  explicit HcOutputs(const HcCase& c) : x({c.t, c.d}), post({c.t, c.h}), comb({c.t, c.h, c.h}) {}
  GuardBuffer<float> x, post, comb;
};

// Roundings of a sum of k products and of rho: on a CPU K / 8 + 40; on a GPU 4 (a lane), 5 (lanes), K / 2048, 5 (blocks
// of columns), 30 of expf, rsqrtf and the sigmoid's division.
inline int64_t HcRoundings(On on, int64_t k) { return on == On::kGpu ? CeilDiv(k, 2048) + 44 : CeilDiv(k, 8) + 40; }

// m = rho (fn X) is off by gamma_n rho sum |fn| |X|, n = HcRoundings. A row X / rho has root mean square 1, |fn| <= 6
// and |X| rho <= 6 sqrt(..): rho sum |fn| |X| <= K in these data, so |dm| <= K gamma_n. A logit adds scale |dm| <= 0.08
// |dm| and 3 roundings of |logit| <= 10. Sigmoid has slope 1/4. Sinkhorn steps are non-expansive in log space
// (Hilbert's metric): an entry's relative error is at most 4 times the logits' error, plus 6 roundings for each of 39
// normalisations. Beyond small K the worst case bound is useless; errors grow like its root.
inline double HcMixTolerance(On on, const HcCase& c) {
  const int64_t k = c.h * c.d;
  if (k > 1024) return 1e-4;
  return 4 * (0.08 * static_cast<double>(k) * Gamma(HcRoundings(on, k)) + Gamma(30)) + Gamma(6 * 39);
}

// The regimes that a GPU distinguishes; on a CPU both are the same.
inline std::vector<Regime> RegimesOf(On on) {
  return on == On::kGpu ? std::vector<Regime>{Regime::kDecode, Regime::kPrompt} : std::vector<Regime>{Regime::kDecode};
}

}  // namespace dsv4::test
