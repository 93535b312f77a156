// Which implementation of an op runs: an ordered table per op, the first whose supports() holds. The choice depends on
// the machine and the context only, never on shapes, so a row's bits never depend on its batch.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/check.h"
#include "device/cpu_features.h"
#include "device/exec_context.h"

namespace dsv4 {

template <typename Args>
struct Candidate {
  const char* name;
  bool (*supports)(const ExecContext& ctx);
  void (*run)(const ExecContext& ctx, const Args& args);
};

inline bool SupportsAvx2(const ExecContext&) {
  static const bool has = CpuHasAvx2();
  return has;
}
inline bool SupportsAll(const ExecContext&) { return true; }

// The last row of a table is the reference.
template <typename Args, size_t N>
const Candidate<Args>& Choose(const Candidate<Args> (&table)[N], const ExecContext& ctx) {
  if (!ctx.reference_ops) {
    for (const Candidate<Args>& c : table) {
      if (c.supports(ctx)) return c;
    }
  }
  return table[N - 1];
}

struct OpImplementations {
  std::string op;
  std::string chosen;
  std::vector<std::string> candidates;
};

template <typename Args, size_t N>
OpImplementations DescribeOp(const char* op, const Candidate<Args> (&table)[N], const ExecContext& ctx) {
  OpImplementations d{op, Choose(table, ctx).name, {}};
  for (const Candidate<Args>& c : table) d.candidates.push_back(c.name);
  return d;
}

// Every op of the engine with its choice under `ctx`.
std::vector<OpImplementations> ListOps(const ExecContext& ctx);

}  // namespace dsv4
