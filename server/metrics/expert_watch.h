// What the engine has counted of its experts, for metrics and for --count-experts. One thread: the engine's.
#pragma once

#include <chrono>
#include <string>

#include "dsv4/engine.h"
#include "server/metrics/metrics.h"

namespace dsv4::server {

class ExpertWatch {
 public:
  // `file`: written once a minute, and when Finish is called; empty: none.
  ExpertWatch(Engine& engine, Metrics& metrics, std::string file);

  // Between steps; `idle`: none follows at once. Asks the engine every few seconds, or when it is idle.
  // An error is what the file could not be written for: one line, and no other attempt until Finish.
  Status Look(bool idle);
  Status Finish();

 private:
  Status Take(bool write);

  Engine& engine_;
  Metrics& metrics_;
  const std::string file_;
  std::chrono::steady_clock::time_point next_look_, next_write_;
  bool counts_ = true;  // until the engine says that it does not
  bool failed_ = false;
};

}  // namespace dsv4::server
