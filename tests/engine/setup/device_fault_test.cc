#include "engine/setup/device_fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace dsv4 {
namespace {

TEST(DeviceFault, HasUpToThreeParts) {
  EXPECT_EQ(ParseDeviceFault("", 1)->passes, 0);
  const auto all = ParseDeviceFault("40", 1);
  EXPECT_EQ(all->passes, 40);
  EXPECT_EQ(all->rank, -1);
  const auto one = ParseDeviceFault("40:1", 2);
  EXPECT_EQ(one->rank, 1);
  EXPECT_EQ(one->late_s, 0);
  const auto late = ParseDeviceFault("40:1:2.5", 2);
  EXPECT_EQ(late->passes, 40);
  EXPECT_EQ(late->late_s, 2.5);
}

// A test that requests a fault and gets none would always pass.
TEST(DeviceFault, WhatCannotBeReadIsAnError) {
  for (const char* text :
       {"x", "3x", "-1", ":1", "3:", "3:x", "3:-1", "3:2", "3:1:", "3:1:x", "3:1:2:4", " 3", "99999999999999999999"}) {
    const auto fault = ParseDeviceFault(text, 2);
    ASSERT_FALSE(fault.ok()) << text;
    EXPECT_EQ(fault.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(fault.status().message(), testing::HasSubstr(std::string("DSV4_FAIL_DEVICE_AFTER is '") + text + "'"));
    EXPECT_THAT(fault.status().message(), testing::HasSubstr("ranks from 0 to 1"));
  }
}

}  // namespace
}  // namespace dsv4
