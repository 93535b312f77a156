#include "device/fault_log.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

TEST(FaultLog, KeepsTheFirstAndIsOneGpusOwn) {
  FaultLog one, other;
  EXPECT_TRUE(one.status().ok());
  one.Note("kernel launch", "out of resources");
  one.Note("upload", "unspecified launch failure");
  EXPECT_EQ(one.status().message(),
            "the GPU failed (kernel launch: out of resources), and its memory is lost; "
            "report this with the command if it happens again");
  EXPECT_TRUE(other.status().ok());
}

}  // namespace
}  // namespace dsv4
