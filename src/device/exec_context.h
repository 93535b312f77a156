// ExecContext: where an op runs; the first argument of every op.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace dsv4 {

class OpTrace;
struct RankView;

enum class DeviceKind : uint8_t { kCpu, kCuda };

// Memory of the device that an op may use while it runs; nothing in it survives the op.
struct Scratch {
  uint8_t* data = nullptr;  // 256-byte aligned
  int64_t bytes = 0;
};

struct ExecContext {
  ThreadPool* pool = nullptr;   // CPU workers; null runs on the calling thread
  bool reference_ops = false;   // choose the reference implementation of every op
  bool tiles = false;           // kCpu: matrix products on AMX tiles, which the machine must have
  OpTrace* trace = nullptr;     // CPU: takes the time of every op (op_trace.h)
  DeviceKind device = DeviceKind::kCpu;
  void* stream = nullptr;       // kCuda: the cudaStream_t that ops are queued on
  Scratch scratch = {};         // kCuda
  bool f32_inputs = false;      // kCuda: inputs of matrix products as float32, not rounded to BF16
  bool batch_invariant = false; // kCuda: only kernels whose rows have the same bits at every T (docs/cuda.md)
  bool overlap = true;          // kCuda: a kernel may start before the one in front of it ends (programmatic launch)
  const RankView* ranks = nullptr;  // of several that run one model together (exchange.h); null: one
};

}  // namespace dsv4
