// A progress line on stderr. It appears only on a terminal, after 300 ms.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "dsv4/engine.h"

namespace dsv4::cli {

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Draws at most ten times per second. `detail` comes after the bar.
  void Update(const std::string& label, int64_t done, int64_t total, const std::string& detail = "");
  void Clear();

  // Returns a callback for the engine, which draws its progress and stops it after Ctrl-C. Must not outlive this
  // object.
  ProgressFn Callback();

 private:
  bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace dsv4::cli
