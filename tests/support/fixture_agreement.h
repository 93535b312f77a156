// Compares an engine's results with a fixture's reference, within the tolerances of docs/dev/numerics.md.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "support/agreement.h"
#include "support/fixture.h"

namespace dsv4::test {

// The prompt in one step, twice with the same bits, and token by token from token 130.
inline void ExpectFixtureAgrees(Engine& engine, const std::string& dir) {
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  const int64_t v = engine.info().vocab_size;
  const std::vector<float> logits = AllLogits(engine, ids.i32);
  ExpectAgreement("whole prompt", Compare(logits, reference.f32, v), 0.01, 0.98);
  EXPECT_EQ(AllLogits(engine, ids.i32), logits) << "two runs differ";
  ExpectAgreement("decode from 130", Compare(AllLogits(engine, ids.i32, 130), reference.f32, v), 0.01, 0.98);
}

// Rows rounded as in training (FP8 rows, FP4 index: the defaults), against the reference with the same rounding; token
// by token from `decode_from`. Returns the logits.
inline std::vector<float> ExpectAgreesAsTrained(Engine& engine, const std::string& dir, size_t decode_from = SIZE_MAX) {
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "sim_logits");
  const std::vector<float> logits = AllLogits(engine, ids.i32, std::min(decode_from, ids.i32.size()));
  const Agreement a = Compare(logits, reference.f32, engine.info().vocab_size);
  std::vector<float> differences(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) differences[i] = std::fabs(logits[i] - reference.f32[i]);
  const auto middle = differences.begin() + static_cast<int64_t>(differences.size() / 2);
  std::nth_element(differences.begin(), middle, differences.end());
  std::printf("as trained: arg-max agreement %.4f, median difference %.5f\n", a.arg_max, static_cast<double>(*middle));
  EXPECT_GE(a.arg_max, 0.97);
  EXPECT_LE(*middle, 0.02f);
  return logits;
}

}  // namespace dsv4::test
