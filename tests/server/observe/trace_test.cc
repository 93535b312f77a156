#include "server/observe/trace.h"

#include <string>

#include "gtest/gtest.h"

namespace dsv4::server {

namespace {

const std::string kTraceId = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParentId = "00f067aa0ba902b7";

TEST(TraceParent, IsContinued) {
  const TraceContext context = ReadTraceParent("00-" + kTraceId + "-" + kParentId + "-01");
  EXPECT_EQ(context.trace_id, kTraceId);
  EXPECT_EQ(context.parent_id, kParentId);
  EXPECT_EQ(context.span_id.size(), 16u);
  EXPECT_NE(context.span_id, kParentId);
  EXPECT_TRUE(context.sampled);
  EXPECT_FALSE(ReadTraceParent("00-" + kTraceId + "-" + kParentId + "-00").sampled);
  EXPECT_EQ(ReadTraceParent("01-" + kTraceId + "-" + kParentId + "-01-more").trace_id, kTraceId);
}

TEST(TraceParent, ThatIsMalformedIsNone) {
  const std::string zeros(32, '0');
  for (const std::string& header :
       {std::string(), std::string("00"), "00-" + kTraceId + "-" + kParentId, "00-" + kTraceId + "-" + kParentId + "-1",
        "ff-" + kTraceId + "-" + kParentId + "-01", "00-" + zeros + "-" + kParentId + "-01",
        "00-" + kTraceId + "-" + zeros.substr(16) + "-01", "00-" + kTraceId + "-" + kParentId + "-01-more",
        "00-" + kTraceId + "-" + kParentId + "-0x", "00_" + kTraceId + "_" + kParentId + "_01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParentId + "-01"}) {
    EXPECT_EQ(ReadTraceParent(header).trace_id, "") << header;
  }
}

TEST(TraceParent, NewOnesDiffer) {
  const TraceContext a = NewTrace(), b = NewTrace();
  EXPECT_EQ(a.trace_id.size(), 32u);
  EXPECT_EQ(a.parent_id, "");
  EXPECT_NE(a.trace_id, b.trace_id);
  EXPECT_NE(a.span_id, b.span_id);
}

}  // namespace

}  // namespace dsv4::server
