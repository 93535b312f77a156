// Much freed memory goes back to the system, and memory that cannot go back is examined only once.
#include "server/base/free_memory.h"

#include <cstdlib>
#include <fstream>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>
#endif

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

#ifdef __GLIBC__

// Blocks of which every 64th stays, on every sixteenth page.
class Fragments {
 public:
  ~Fragments() {
    for (void* block : kept_) std::free(block);
  }
  void Make(int64_t bytes) {
    std::vector<void*> blocks;
    for (int64_t i = 0; i < bytes / kBlock; ++i) {
      blocks.push_back(std::malloc(kBlock));
      *static_cast<volatile char*>(blocks.back()) = 1;
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (i % 64 == 0) {
        kept_.push_back(blocks[i]);
      } else {
        std::free(blocks[i]);
      }
    }
  }

 private:
  static constexpr int64_t kBlock = 1008;
  std::vector<void*> kept_;
};

int64_t ResidentBytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(FreeMemory, IsGivenBackOnceAndAgainWhereItWasUsed) {
  Fragments fragments;
  fragments.Make(200 * kMiB);
  if (::mallinfo2().fordblks < 100 * kMiB) GTEST_SKIP() << "another allocator's heap";
  FreeMemory memory;
  const int64_t before = ResidentBytes();
  EXPECT_TRUE(memory.GiveBack());
  EXPECT_LT(ResidentBytes(), before - 100 * kMiB);
  EXPECT_GT(::mallinfo2().fordblks, 100 * kMiB);  // returned memory still counts as free
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(memory.GiveBack());

  Fragments().Make(20 * kMiB);  // too little
  EXPECT_FALSE(memory.GiveBack());
  const int64_t free = static_cast<int64_t>(::mallinfo2().fordblks);
  Fragments().Make(100 * kMiB);  // reuses returned addresses: no more memory is free than before
  EXPECT_LT(static_cast<int64_t>(::mallinfo2().fordblks), free + 16 * kMiB);
  const int64_t used = ResidentBytes();
  EXPECT_TRUE(memory.GiveBack());
  EXPECT_LT(ResidentBytes(), used - 50 * kMiB);
  EXPECT_FALSE(memory.GiveBack());
}

#else

TEST(FreeMemory, IsGivenBackOnceAndAgainWhereItWasUsed) { GTEST_SKIP() << "another C library's heap"; }

#endif

}  // namespace
}  // namespace dsv4::server
