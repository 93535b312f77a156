// Responses kept in memory, where memory runs out.
#include "server/response_store.h"

#include <new>
#include <string>

#include "gtest/gtest.h"
#include "support/allocations.h"

namespace dsv4::server {
namespace {

StoredResponse Response(const std::string& text) { return {.tenant = "", .response = text, .items = "[]"}; }

// What was being put in is there or not; the others are, and the oldest go.
TEST(ResponseStore, IsWholeWhereverMemoryRunsOut) {
  for (int64_t left = 0, failed = -1; failed != test::num_failed_allocations; ++left) {
    ASSERT_LT(left, 100);
    failed = test::num_failed_allocations;
    ResponseStore store(1000, "");
    const std::string first = "resp_" + std::string(24, 'a');
    StoredResponse response = Response(std::string(200, 'x'));
    test::allocation_limit = {.left = left, .once = true};
    try {
      store.Put(first, std::move(response));
    } catch (const std::bad_alloc&) {
    }
    test::allocation_limit = {};
    for (char c = 'b'; c < 'm'; ++c) store.Put("resp_" + std::string(24, c), Response(std::string(200, c)));
    EXPECT_EQ(store.Get("", first), nullptr);
    const auto last = store.Get("", "resp_" + std::string(24, 'l'));
    ASSERT_NE(last, nullptr);
    EXPECT_EQ(last->response, std::string(200, 'l'));
  }
}

}  // namespace
}  // namespace dsv4::server
