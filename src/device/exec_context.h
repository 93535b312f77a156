// ExecContext: where an op runs; the first argument of every op.
#pragma once

#include "base/thread_pool.h"

namespace dsv4 {

struct ExecContext {
  ThreadPool* pool = nullptr;   // CPU workers; null runs on the calling thread
  bool reference_ops = false;   // choose the reference implementation of every op
};

}  // namespace dsv4
