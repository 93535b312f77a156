// A process that can start only few more threads.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <system_error>

#include <gtest/gtest.h>

namespace dsv4::test {

// Run in a separate process, by EXPECT_EXIT. Ends it with 0 if `call` throws the expected exception; otherwise returns.
// There is no address space for the threads' stacks.
template <typename Call>
void ExitIfThreadsRunOut(const Call& call) {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto most = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + (int64_t{48} << 20));
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) return;
  try {
    call();
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) std::_Exit(0);
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kLimitsMemory = false;  // the sanitizer also needs memory for each thread
#else
inline constexpr bool kLimitsMemory = true;
#endif

}  // namespace dsv4::test

// 200 threads are more than the limit allows.
#define DSV4_EXPECT_THREADS_RUN_OUT(...)                                                                   \
  do {                                                                                                     \
    if (!::dsv4::test::kLimitsMemory) GTEST_SKIP() << "a sanitizer needs the memory";                      \
    EXPECT_EXIT(::dsv4::test::ExitIfThreadsRunOut([] { __VA_ARGS__; }), ::testing::ExitedWithCode(0), ""); \
  } while (false)
