// The time of a step, op by op. To measure it, set ExecContext::trace. CPU only: there an op is done when it returns.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace dsv4 {

// A lower bound for the work of an op's call.
struct OpWork {
  std::string detail;   // format and shape, if relevant
  double bytes = 0;     // weights and cache rows that it reads from memory
  double products = 0;  // multiply-adds
};

class OpTrace {
 public:
  struct Row {
    std::string op, detail;
    int64_t calls = 0;
    double seconds = 0;  // without the ops called within
    double bytes = 0, products = 0;
  };

  void Begin() { open_.push_back({Clock::now(), 0}); }
  void End(const char* op, const OpWork& work) {
    const double seconds = std::chrono::duration<double>(Clock::now() - open_.back().start).count();
    const double own = seconds - open_.back().inside;
    open_.pop_back();
    if (!open_.empty()) open_.back().inside += seconds;
    Row& row = Find(op, work.detail);
    ++row.calls;
    row.seconds += own;
    row.bytes += work.bytes;
    row.products += work.products;
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    Clock::time_point start;
    double inside;  // seconds of the ops called within
  };

  Row& Find(const char* op, const std::string& detail) {
    for (Row& row : rows_) {
      if (row.op == op && row.detail == detail) return row;
    }
    rows_.push_back({.op = op, .detail = detail});
    return rows_.back();
  }

  std::vector<Open> open_;
  std::vector<Row> rows_;
};

}  // namespace dsv4
