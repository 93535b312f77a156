#include "server/base/memory_reserve.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>

namespace dsv4::server {

namespace {

std::atomic<void*> g_reserve{nullptr};  // global, because a new-handler takes no argument
std::atomic<size_t> g_bytes{0};

void GiveOut() {
  if (std::uncaught_exceptions() > 0) {
    if (void* reserve = g_reserve.exchange(nullptr); reserve != nullptr) {
      std::free(reserve);
      return;  // operator new tries again
    }
  }
  throw std::bad_alloc();
}

}  // namespace

void KeepMemoryReserve(size_t bytes) {
  g_bytes = bytes;
  RefillMemoryReserve();
  std::set_new_handler(GiveOut);
}

void RefillMemoryReserve() noexcept {
  if (g_reserve.load() != nullptr) return;
  // Never written to, so it takes addresses only. It takes pages when an allocation uses it.
  void* expected = nullptr;
  void* reserve = std::malloc(g_bytes);
  if (!g_reserve.compare_exchange_strong(expected, reserve)) std::free(reserve);
}

}  // namespace dsv4::server
