// ExecContext: the environment in which an op runs; the first argument of every op.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace dsv4 {

class FaultLog;
class OpTrace;
struct RankView;

enum class DeviceKind : uint8_t { kCpu, kCuda };

// Selects the GPU kernels for the rows of a pass. A row's bits depend on the regime and on the row, never on the number
// of rows in the pass. An op chooses kernels by the regime; a number of rows may change only its schedule. The engine
// assigns rows to regimes (engine/setup/regimes.h, docs/dev/decisions/0008-regimes.md). On a CPU all regimes have the
// same kernels.
enum class Regime : uint8_t {
  kDecode,      // for up to 128 rows: an input of a matrix product is two BF16 numbers
  kPrompt,      // for hundreds of rows: two FP16 numbers
  kLongPrompt,  // for thousands of rows: one FP16 number (docs/dev/numerics.md, 3.1)
};

// Device memory that an op may use while it runs. Its contents do not survive the op.
struct Scratch {
  uint8_t* data = nullptr;  // 256-byte aligned
  int64_t bytes = 0;
};

// The properties of a GPU that select kernels. They are plain values, so that a plan can be made for a GPU that is
// described but not present.
struct GpuInfo {
  int arch = 0;  // 10 x compute capability: 90 is 9.0 (Hopper); 0: not a GPU
  int multiprocessors = 0;
  int64_t shared_bytes = 0;  // shared memory limit of a block
  int cluster_blocks = 0;    // size of the largest cluster, up to 16, whose blocks have one multiprocessor each

  bool IsHopper() const { return arch == 90; }  // the *_sm90 kernels are compiled for it
};

struct ExecContext {
  ThreadPool* pool = nullptr;  // CPU workers; null: runs on the calling thread
  bool reference_ops = false;  // choose the reference implementation of every op
  bool tiles = false;          // kCpu: matrix products use AMX tiles, which the machine must have
  OpTrace* trace = nullptr;    // CPU: records the time of every op (op_trace.h)
  DeviceKind device = DeviceKind::kCpu;
  GpuInfo gpu = {};            // kCuda
  void* stream = nullptr;      // kCuda: the cudaStream_t that ops are queued on
  FaultLog* faults = nullptr;  // kCuda: records launches that fail (fault_log.h)
  Scratch scratch = {};        // kCuda
  bool f32_inputs = false;     // kCuda: inputs of matrix products as float32, not rounded to BF16
  Regime regime = Regime::kDecode;
  bool overlap = true;              // kCuda: a kernel may start before the previous one ends (programmatic launch)
  const RankView* ranks = nullptr;  // of several ranks that run one model (exchange.h); null: one rank
};

}  // namespace dsv4
