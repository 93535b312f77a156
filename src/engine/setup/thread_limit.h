// Turns the exceptions for too many threads and for too little memory into a Status.
#pragma once

#include <new>
#include <system_error>

#include "base/str.h"
#include "base/thread_pool.h"
#include "dsv4/engine.h"
#include "dsv4/status.h"

namespace dsv4 {

// Returns the result of `call`, a Status or a Result; kResourceExhausted if the system has no more threads
// or no more memory.
template <typename Call>
auto WithinThreadLimit(const EngineOptions& o, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(
        "not enough memory to load the model; close other programs, or raise the limit of the process (ulimit -v)");
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) throw;
  }
  const int threads = o.num_threads > 0 ? o.num_threads : NumUsableCores();
  return ResourceExhausted(StrCat("cannot start ", threads, threads == 1 ? " thread" : " threads",
                                  "; use fewer --threads, or raise the limits of the process (ulimit -u, -v)"));
}

}  // namespace dsv4
