// The contexts that every op is tested under: the calling thread alone, several threads, and the reference.
#pragma once

#include <string>
#include <vector>

#include "device/exec_context.h"

namespace dsv4::test {

struct NamedContext {
  std::string name;
  ExecContext ctx;
};

inline std::vector<NamedContext> AllContexts() {
  static ThreadPool pool(3);
  return {{"reference", {.reference_ops = true}},
          {"one thread", {}},
          {"three threads", {.pool = &pool}},
          {"reference, three threads", {.pool = &pool, .reference_ops = true}}};
}

}  // namespace dsv4::test
