// A fixture's reference and what a GPU makes of it, within the bars of docs/numerics.md.
#pragma once

#include <string>
#include <vector>

#include "support/agreement.h"
#include "support/fixture.h"

namespace dsv4::test {

// The prompt as one, twice to the same bits, and from token 130 on one by one.
inline void ExpectFixtureAgrees(Engine& engine, const std::string& dir) {
  const Array ids = ReferenceArray(dir, "prompt_ids"), reference = ReferenceArray(dir, "logits");
  const int64_t v = engine.info().vocab_size;
  const std::vector<float> logits = AllLogits(engine, ids.i32);
  ExpectAgreement("whole prompt", Compare(logits, reference.f32, v), 0.01, 0.98);
  EXPECT_EQ(AllLogits(engine, ids.i32), logits) << "two runs differ";
  ExpectAgreement("decode from 130", Compare(AllLogits(engine, ids.i32, 130), reference.f32, v), 0.01, 0.98);
}

}  // namespace dsv4::test
