#include "model/deepseek_v4/pass/host_scratch.h"

#include <gtest/gtest.h>

namespace dsv4::deepseek_v4 {
namespace {

// Flash at its longest context: 8 MiB of index scores for each of 16 threads, and 16,384 decoded rows of 512 channels.
TEST(HostScratch, OfTheReleasedModel) {
  Config c;
  c.head_dim = 512;
  c.window = 128;
  c.compress_ratios = {0, 4, 128};
  EXPECT_EQ(HostScratchBytes(c, 1048576, 16), int64_t{16} * (8 << 20) + (32 << 20));
  c.compress_ratios = {0};
  EXPECT_EQ(HostScratchBytes(c, 1048576, 16), (128 + 8) * 512 * 4);
}

}  // namespace
}  // namespace dsv4::deepseek_v4
