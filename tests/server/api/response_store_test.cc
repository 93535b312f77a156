// The response store when memory runs out.
#include "server/api/response_store.h"

#include <filesystem>
#include <fstream>
#include <new>
#include <string>

#include "gtest/gtest.h"
#include "io/test_files.h"
#include "support/allocations.h"

namespace dsv4::server {
namespace {

StoredResponse Response(const std::string& text) { return {.tenant = "", .response = text, .items = "[]"}; }

// The new response is stored or not. The other ones stay, except the oldest, which go.
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

// A file that a killed server left half written is removed. A damaged file is ignored.
TEST(ResponseStore, FilesAreReadWithSuspicion) {
  namespace fs = std::filesystem;
  const test::TempDir folder;
  const auto name = [&](char c) { return "resp_" + std::string(24, c); };
  const auto path = [&](char c) { return (fs::path(folder.path()) / (name(c) + ".json")).string(); };
  const auto write = [](const std::string& file, const std::string& text) { std::ofstream(file) << text; };
  const std::string deep(100000, '[');
  write(path('0'), "\"\"\n{}\n[{\"type\": \"message\"}]\n");
  write(path('1'), "\"\"\n{}\n[{\"type\": \"mess\n");
  write(path('2'), "\"\"\n{}\n{\"a\": 5}\n");
  write(path('3'), "\"\"\n{}\n" + deep + "\n");
  write(path('4'), deep + "\n{}\n[]\n");
  write(path('5'), "\"\"\n{\n[]\n");
  write(path('6') + ".tmp", "\"\"\n{}\n");
  ResponseStore store(1 << 20, folder.path());
  EXPECT_NE(store.Get("", name('0')), nullptr);
  for (const char c : {'1', '2', '3', '4', '5', '6'}) EXPECT_EQ(store.Get("", name(c)), nullptr) << c;
  EXPECT_FALSE(fs::exists(path('6') + ".tmp"));
}

}  // namespace
}  // namespace dsv4::server
