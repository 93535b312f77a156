// Selects the implementation of an op from an ordered table: the first row whose supports() holds. The choice depends
// only on the machine and the context, never on shapes. So on the CPU a row's bits never depend on its batch.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/check.h"
#include "device/cpu_features.h"
#include "device/exec_context.h"
#include "device/op_trace.h"

namespace dsv4 {

template <typename Args>
struct Candidate {
  const char* name;
  bool (*supports)(const ExecContext& ctx);
  void (*run)(const ExecContext& ctx, const Args& args);  // null: not in this build
};

inline bool SupportsAvx2(const ExecContext& ctx) {
  static const bool has = CpuHasAvx2();
  return has && ctx.device == DeviceKind::kCpu;
}
inline bool SupportsAvx512(const ExecContext& ctx) {
  static const bool has = CpuHasAvx512();
  return has && ctx.device == DeviceKind::kCpu;
}
inline bool SupportsAvx512Vnni(const ExecContext& ctx) {
  static const bool has = CpuHasAvx512Vnni();
  return has && ctx.device == DeviceKind::kCpu;
}
inline bool SupportsAmx(const ExecContext& ctx) { return ctx.tiles && ctx.device == DeviceKind::kCpu && CpuHasAmx(); }
inline bool SupportsCpu(const ExecContext& ctx) { return ctx.device == DeviceKind::kCpu; }
inline bool SupportsCuda(const ExecContext& ctx) { return ctx.device == DeviceKind::kCuda; }

// Functions named Gpu... and ...Implementation, and predicates about an op's abilities, depend only on the context,
// formats and shapes, in every build. So they also work for a GPU that is described but not present.
// The last row of a table is the reference; it runs on the CPU.

// The last row of a table is the reference; it runs on the CPU.
template <typename Args, size_t N>
const Candidate<Args>& Choose(const Candidate<Args> (&table)[N], const ExecContext& ctx) {
  if (!ctx.reference_ops) {
    for (const Candidate<Args>& c : table) {
      if (c.supports(ctx)) return c;
    }
  }
  DSV4_CHECK(ctx.device == DeviceKind::kCpu, "this op has no implementation for the device");
  return table[N - 1];
}

// The work of a call, for traces. An op whose work is of interest has an overload next to its Args.
template <typename Args>
OpWork WorkOf(const Args&) {
  return {};
}

template <typename Args, size_t N>
void RunOp(const char* op, const Candidate<Args> (&table)[N], const ExecContext& ctx, const Args& args) {
  const Candidate<Args>& chosen = Choose(table, ctx);
  DSV4_CHECK(chosen.run != nullptr, op, ": this build has no ", chosen.name);
  if (ctx.trace == nullptr) return chosen.run(ctx, args);
  const OpWork work = WorkOf(args);
  ctx.trace->Begin();
  chosen.run(ctx, args);
  ctx.trace->End(op, work);
}

struct OpImplementations {
  std::string op;
  std::string chosen;
  std::vector<std::string> candidates;  // in this build
  std::string on_gpu = {};              // the GPU's kernels, whether this build has them or not
};

template <typename Args, size_t N>
OpImplementations DescribeOp(const char* op, const Candidate<Args> (&table)[N], const ExecContext& ctx) {
  OpImplementations d{op, Choose(table, ctx).name, {}};
  for (const Candidate<Args>& c : table) {
    if (c.run != nullptr) d.candidates.push_back(c.name);
    if (c.supports == SupportsCuda) d.on_gpu = c.name;
  }
  return d;
}

// Every op of the engine with its choice under `ctx`.
std::vector<OpImplementations> ListOps(const ExecContext& ctx);

}  // namespace dsv4
