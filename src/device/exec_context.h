// ExecContext: where an op runs; the first argument of every op.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace dsv4 {

class FaultLog;
class OpTrace;
struct RankView;

enum class DeviceKind : uint8_t { kCpu, kCuda };

// Which kernels the rows of a pass take on a GPU. A row's bits depend on the regime and on the row, never on how many
// rows a pass has: an op chooses by the regime, or by numbers that move its schedule only. The engine says what rows
// are of which regime (engine/setup/regimes.h, docs/dev/decisions/0008-regimes.md). On a CPU all regimes have the same
// kernels.
enum class Regime : uint8_t {
  kDecode,      // made for up to 128 rows: inputs of matrix products are two BF16 numbers each
  kPrompt,      // made for hundreds of rows: two FP16 numbers
  kLongPrompt,  // made for thousands: one FP16 number (docs/dev/numerics.md, 3.1)
};

// Memory of the device that an op may use while it runs; nothing in it survives the op.
struct Scratch {
  uint8_t* data = nullptr;  // 256-byte aligned
  int64_t bytes = 0;
};

// What a GPU is, as far as kernels are chosen by it. Nothing is asked of the machine here: a plan can be made for a GPU
// that is described but not there.
struct GpuInfo {
  int arch = 0;  // 10 x compute capability: 90 is 9.0 (Hopper); 0: not a GPU
  int multiprocessors = 0;
  int64_t shared_bytes = 0;  // of a block, the most it may ask for
  int cluster_blocks = 0;    // of the largest cluster, up to 16, whose blocks have a multiprocessor each

  bool IsHopper() const { return arch == 90; }  // what the *_sm90 kernels are compiled for
};

struct ExecContext {
  ThreadPool* pool = nullptr;  // CPU workers; null runs on the calling thread
  bool reference_ops = false;  // choose the reference implementation of every op
  bool tiles = false;          // kCpu: matrix products on AMX tiles, which the machine must have
  OpTrace* trace = nullptr;    // CPU: takes the time of every op (op_trace.h)
  DeviceKind device = DeviceKind::kCpu;
  GpuInfo gpu = {};            // kCuda
  void* stream = nullptr;      // kCuda: the cudaStream_t that ops are queued on
  FaultLog* faults = nullptr;  // kCuda: where launches that fail are noted (fault_log.h)
  Scratch scratch = {};        // kCuda
  bool f32_inputs = false;     // kCuda: inputs of matrix products as float32, not rounded to BF16
  Regime regime = Regime::kDecode;
  bool overlap = true;  // kCuda: a kernel may start before the one in front of it ends (programmatic launch)
  const RankView* ranks = nullptr;  // of several that run one model together (exchange.h); null: one
};

}  // namespace dsv4
