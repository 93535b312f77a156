// Steps, inputs and derived bounds for the tests of sparse_attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/sparse_attention/rows.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {

struct AttentionStep {
  const char* name;
  KvSpec spec;
  std::vector<SequenceStep> sequences;
  int64_t heads;
  int64_t picks;  // 0: every visible compressed row
};

// A GPU's kernels distinguish more sizes.
inline std::vector<AttentionStep> AttentionSteps(On on) {
  KvSpec odd = TinyKvSpec({4}, KvDtype::kBf16);
  odd.head_dim = 44;
  odd.window = 37;
  const SequenceStep empty{.cached = 10, .tokens = 0};
  std::vector<AttentionStep> steps = {
      {"first token", TinyKvSpec({0}), {{0, 1}}, 1, 0},
      {"window edges", TinyKvSpec({0}), {{126, 4}, {0, 130}, empty, {255, 2}}, 5, 0},
      {"ring only", TinyKvSpec({0}, KvDtype::kF32), {{300, 1}, {128, 1}, {127, 1}}, 8, 0},
      {"all compressed rows", TinyKvSpec({128}), {{1000, 1}, {0, 129}, {127, 1}}, 3, 0},
      {"ratio 4, all", TinyKvSpec({4}), {{2, 7}, {700, 3}}, 7, 0},
      {"picks", TinyKvSpec({4}), {{900, 5}, {3, 2}, {0, 40}, {64, 1}}, 6, 20},
      {"more picks than rows", TinyKvSpec({4}), {{5, 3}}, 2, 50},
      {"odd head size", odd, {{60, 9}, {0, 50}}, 5, 8},
      {"released sizes", FullKvSpec({4}), {{2060, 2}}, 9, 64},
  };
  if (on == On::kCpu) return steps;
  const KvSpec bf16 = FullKvSpec({4}, KvDtype::kBf16);
  for (const AttentionStep& step : std::vector<AttentionStep>{
           {"decode", FullKvSpec({4}), {{2060, 1}, {0, 1}, {3, 1}, {130, 1}, {2800, 1}}, 64, 512},
           {"decode, 128 heads", FullKvSpec({4}), {{2060, 1}, {4200, 1}}, 128, 1024},
           {"decode, few heads", bf16, {{2060, 1}, {77, 1}}, 9, 64},
           {"decode, ratio 128", FullKvSpec({128}), {{20000, 1}, {127, 1}, {128, 1}, {126, 1}}, 16, 0},
           {"decode, window", FullKvSpec({0}), {{500, 1}, {0, 1}, {64, 1}}, 32, 0},
           {"prefill", FullKvSpec({4}), {{1030, 4}, {0, 20}, empty, {255, 2}}, 64, 100},
           {"prefill, ratio 128", FullKvSpec({128}), {{3000, 5}, {120, 14}}, 64, 0},
           {"long prefill", FullKvSpec({4}), {{900, 30}, {0, 50}, empty, {255, 2}}, 64, 100},
           {"long prefill, ratio 128", FullKvSpec({128}), {{3000, 30}, {120, 40}}, 64, 0},
           {"long prefill, 128 heads, bf16", bf16, {{1030, 67}}, 128, 70},
           {"prefill, 128 heads, bf16", bf16, {{1030, 9}}, 128, 128},
       }) {
    steps.push_back(step);
  }
  return steps;
}

// q, kv (as RoundKv leaves it), sink and picks for a step over `cache`.
struct AttentionInputs {
  AttentionInputs(Random& random, const AttentionStep& step, const CacheFixture& cache)
      : t(cache.num_tokens()),
        q({t, step.heads, step.spec.head_dim}, random.Normals(t * step.heads * step.spec.head_dim)),
        kv({t, step.spec.head_dim}, random.Normals(t * step.spec.head_dim)),
        sink({step.heads}, random.Normals(step.heads, 3)),
        picks({t, std::max<int64_t>(step.picks, 1)}),
        cos_sin({t, step.spec.rope_dim / 2, 2}) {
    for (int64_t i = 0; i < cos_sin.size(); i += 2) {
      const double angle = random.Uniform(-10, 10);
      cos_sin[i] = static_cast<float>(std::cos(angle));
      cos_sin[i + 1] = static_cast<float>(std::sin(angle));
    }
    const RowFormat& format = cache.layout().layers[0].window_row;
    for (int64_t i = 0; i < t; ++i) RoundRow(format, kv.row(i).data());
    for (int64_t i = 0; i < t && step.picks > 0; ++i) {
      const int64_t visible = (cache.positions()[static_cast<size_t>(i)] + 1) / 4;
      std::vector<int32_t> chosen = random.Permutation(visible);
      chosen.resize(static_cast<size_t>(std::min(visible, step.picks)));
      std::sort(chosen.begin(), chosen.end());
      if (i % 5 == 4 && chosen.size() > 3) chosen.resize(chosen.size() - 3);  // the list may end early
      chosen.resize(static_cast<size_t>(step.picks), -1);
      std::copy(chosen.begin(), chosen.end(), picks.row(i).begin());
    }
  }
  SparseAttentionArgs Args(const AttentionStep& step, const CacheView& view, Tensor out) {
    return {.q = q.tensor(),
            .kv = kv.tensor(),
            .sink = sink.tensor(),
            .topk_idxs = step.picks > 0 ? picks.tensor() : Tensor{},
            .cache = view,
            .out = out};
  }
  // The arguments for token `i` alone; `view` holds only that token.
  SparseAttentionArgs OneArgs(const AttentionStep& step, int64_t i, const CacheView& view, Tensor out) {
    SparseAttentionArgs a = Args(step, view, out);
    a.q = {q.row(i).data(), DType::kF32, {1, step.heads, step.spec.head_dim}};
    a.kv = {kv.row(i).data(), DType::kF32, {1, step.spec.head_dim}};
    if (step.picks > 0) a.topk_idxs = {picks.row(i).data(), DType::kI32, {1, step.picks}};
    return a;
  }

  int64_t t;
  GuardBuffer<float> q, kv, sink;
  GuardBuffer<int32_t> picks;
  GuardBuffer<float> cos_sin;
};

// A device's computation: its context and its roundings.
struct AttentionWay {
  On on;
  ExecContext ctx;
  bool half = false;  // operands in FP16
  std::string name() const {
    return StrCat(half ? "FP16" : "float32", " inputs, regime ", static_cast<int>(ctx.regime));
  }
};

inline AttentionWay WayOf(On on, Regime regime) {
  if (on == On::kCpu) return {.on = on, .ctx = AllContexts()[2].ctx};
  return {.on = on, .ctx = {.regime = regime}, .half = true};
}

inline std::vector<AttentionWay> AttentionWays(On on) {
  if (on == On::kCpu) return {WayOf(on, Regime::kDecode)};
  std::vector<AttentionWay> ways;
  for (const bool half : {false, true}) {
    for (const Regime regime : {Regime::kDecode, Regime::kPrompt}) {
      ways.push_back({.on = on, .ctx = {.f32_inputs = !half, .regime = regime}, .half = half});
    }
  }
  return ways;
}

// A score s_i = scale (q . row_i) is off by at most gamma_n scale sum |q| |row|, n = Dh / 8 + 6 on a CPU, Dh + 6 on a
// GPU. With FP16 operands q is off by 2^-12 of itself or, below 2^-14, by 2^-25, and rows (FP8 or BF16 values, at most
// 8 significant bits) by at most 2^-25. The argument of exp is off by two more roundings of |s| + |max|; exp is good to
// 2 ulp. With d the largest of these, a weight is off by a factor within 1 +- 1.1 d, the quotient of two such sums by
// 2.2 d; their additions and rescalings add gamma_(2 rows + 12), on a GPU twice that and 16. Weights in FP16 (those of
// the numerator only) add 2^-12 or, for those below 2^-14, 2^-25 where the largest of a tile or the first tile is 2^7
// or more: 2^-32 of it. Hence
//   |out - exact| <= (2.2 d + gamma + 2^-12) sum_i p_i |row_i| / den + 2^-32 sum_i |row_i| / den + 2^-25.
struct AttentionError {
  explicit AttentionError(const AttentionWay& way)
      : gpu(way.on == On::kGpu), f16(way.half ? 0x1p-12 : 0), tiny(way.half ? 0x1p-25 : 0) {}
  double dot(int64_t dh) const { return Gamma((gpu ? dh : CeilDiv(dh, 8)) + 6); }
  double sums(int64_t rows) const { return gpu ? Gamma(4 * rows + 40) : Gamma(2 * rows + 12); }
  bool gpu;
  double f16, tiny;
};

// Appends the bounds of one head's channels.
inline void HeadBounds(const AttentionError& error, const AttendedRows& rows, const float* q, int64_t dh, double sink,
                       std::vector<double>& bounds) {
  const double scale = 1 / std::sqrt(static_cast<double>(dh));
  std::vector<float> buffer(static_cast<size_t>(dh));
  double largest = sink, relative = 0;
  std::vector<double> s;
  for (int64_t i = 0; i < rows.size(); ++i) {
    const float* row = rows.Get(i, buffer.data());
    double dot = 0, square = 0, magnitude = 0, plain = 0;
    for (int64_t c = 0; c < dh; ++c) {
      const double product = static_cast<double>(q[c]) * row[c];
      dot += product;
      magnitude += std::fabs(product);
      square += product * product;
      plain += std::fabs(q[c]) + std::fabs(row[c]);
    }
    s.push_back(dot * scale);
    largest = std::max(largest, s.back());
    // Roundings of q are independent: 6 standard deviations instead of the worst case, which would say nothing.
    relative = std::max(relative, error.dot(dh) * scale * magnitude + error.f16 * scale * 6 * std::sqrt(square) +
                                      error.tiny * scale * plain + Gamma(1) * std::fabs(s.back()));
  }
  relative += Gamma(4) * (1 + std::fabs(largest)) + Gamma(1) * std::fabs(sink);
  relative += Gamma(1) * (largest - *std::min_element(s.begin(), s.end()));
  std::vector<double> sum(static_cast<size_t>(dh)), all(static_cast<size_t>(dh));
  double den = std::exp(sink - largest);
  for (int64_t i = 0; i < rows.size(); ++i) {
    const float* row = rows.Get(i, buffer.data());
    const double p = std::exp(s[static_cast<size_t>(i)] - largest);
    den += p;
    for (int64_t c = 0; c < dh; ++c) {
      sum[static_cast<size_t>(c)] += p * std::fabs(row[c]);
      all[static_cast<size_t>(c)] += std::fabs(row[c]);
    }
  }
  const double factor = 2.2 * relative + error.f16 + error.sums(rows.size());
  for (size_t c = 0; c < sum.size(); ++c) {
    bounds.push_back((factor * sum[c] + 0x1p-7 * error.tiny * all[c]) / den + error.tiny + 1e-37);
  }
}

inline std::vector<double> AttentionBounds(const SparseAttentionArgs& a, const AttentionWay& way) {
  const int64_t heads = a.q.dim(1), dh = a.q.dim(2);
  std::vector<double> bounds;
  for (int64_t t = 0; t < a.cache.num_tokens; ++t) {
    const AttendedRows rows(a, t);
    for (int64_t n = 0; n < heads; ++n) {
      HeadBounds(AttentionError(way), rows, a.q.f32() + (t * heads + n) * dh, dh, a.sink.f32()[n], bounds);
    }
  }
  return bounds;
}

}  // namespace dsv4::test
