// The frequency tables against the check values of docs/dev/model.md.

#include "model/deepseek_v4/config/rope.h"

#include <gtest/gtest.h>

namespace dsv4::deepseek_v4 {
namespace {

Config ReleasedRope() {
  Config c;
  c.rope_dim = 64;
  c.rope_theta = 10000;
  c.compress_rope_theta = 160000;
  c.yarn_factor = 16;
  c.yarn_original_positions = 65536;
  c.yarn_beta_fast = 32;
  c.yarn_beta_slow = 1;
  return c;
}

struct Value {
  size_t i;
  double f;
};

void ExpectValues(const std::vector<float>& table, std::initializer_list<Value> values) {
  ASSERT_EQ(table.size(), 32u);
  for (const Value& v : values) EXPECT_NEAR(table[v.i] / v.f, 1.0, 2e-7) << "pair " << v.i;
}

TEST(Rope, PlainFrequencies) {
  ExpectValues(PlainRopeFrequencies(ReleasedRope()), {{0, 1.0},
                                                      {1, 0.7498942093},
                                                      {15, 1.333521432e-2},
                                                      {16, 1.0e-2},
                                                      {20, 3.162277660e-3},
                                                      {24, 1.0e-3},
                                                      {25, 7.498942093e-4},
                                                      {31, 1.333521432e-4}});
}

TEST(Rope, CompressFrequenciesCarryYarn) {
  ExpectValues(CompressRopeFrequencies(ReleasedRope()), {{0, 1.0},
                                                         {1, 0.6876560219},
                                                         {15, 3.635538584e-3},
                                                         {16, 2.265625e-3},
                                                         {20, 2.969777783e-4},
                                                         {24, 1.953125e-5},
                                                         {25, 5.372312671e-6},
                                                         {31, 5.680529037e-7}});
}

TEST(Rope, AFactorOfOneLeavesTheBase) {
  Config c = ReleasedRope();
  c.yarn_factor = 1;
  ExpectValues(CompressRopeFrequencies(c), {{1, 0.6876560219}, {24, 1.25e-4}, {31, 9.088846459e-6}});
}

}  // namespace
}  // namespace dsv4::deepseek_v4
