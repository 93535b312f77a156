// dsv4 bench ops, dsv4 bench linears: the time of each op in a step, and linears in every weight format.
#include <algorithm>
#include <string>
#include <vector>

#include "bench.h"
#include "errors.h"
#include "format.h"
#include "io.h"

namespace dsv4::cli {

namespace {

// Returns "12.3", or "" for 0.
std::string Cell(double value, int digits) { return value > 0 ? FormatFixed(value, digits) : ""; }

struct Shares {
  double gb_per_s, percent_of_read, gflops, percent_of_peak;
};
Shares SharesOf(double bytes, double products, double seconds, const Rates& rates) {
  return {bytes / seconds / 1e9, rates.read > 0 ? 100 * bytes / seconds / rates.read : 0, 2 * products / seconds / 1e9,
          rates.fma > 0 ? 100 * products / seconds / rates.fma : 0};
}
void AddShares(Json& row, const Shares& s) {
  row["gb_per_s"] = s.gb_per_s;
  row["percent_of_read_rate"] = s.percent_of_read;
  row["gflops"] = s.gflops;
  row["percent_of_fma_peak"] = s.percent_of_peak;
}

}  // namespace

void ReportOps(const BenchOptions& options, const std::vector<OpTime>& times, int64_t steps, double seconds,
               const Rates& rates, const Json& of) {
  OpTime other{.op = "outside of ops", .detail = "", .calls = steps, .seconds = seconds};
  for (const OpTime& t : times) other.seconds -= t.seconds;
  std::vector<OpTime> all = times;
  all.push_back(other);
  std::stable_sort(all.begin(), all.end(), [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  std::vector<std::vector<std::string>> table = {
      {"op", "calls", "ms per step", "%", "GB/s", "% of read", "GFLOP/s", "% of FMA peak"}};
  const auto n = static_cast<double>(steps);
  for (const OpTime& t : all) {
    const Shares s = SharesOf(t.bytes, t.products, t.seconds, rates);
    const double calls = static_cast<double>(t.calls) / n, share = 100 * t.seconds / seconds;
    if (options.json) {
      Json row = of;
      row["op"] = t.op;
      row["detail"] = t.detail;
      row["calls_per_step"] = calls;
      row["ms_per_step"] = 1e3 * t.seconds / n;
      row["percent_of_step"] = share;
      row["bytes_per_step"] = t.bytes / n;
      row["products_per_step"] = t.products / n;
      AddShares(row, s);
      Print(row.dump() + "\n");
    } else if (share >= 0.05) {
      table.push_back({t.op + (t.detail.empty() ? "" : " " + t.detail), FormatFixed(calls, 0),
                       FormatFixed(1e3 * t.seconds / n, 3), FormatFixed(share, 1), Cell(s.gb_per_s, 1),
                       Cell(s.percent_of_read, 1), Cell(s.gflops, 1), Cell(s.percent_of_peak, 1)});
    }
  }
  if (!options.json) Print(Table(table, {false, true, true, true, true, true, true, true}));
}

void BenchLinears(const BenchOptions& options, Engine& engine, RateMeter& meter) {
  const std::vector<int64_t> tokens = options.linear_tokens.value_or(std::vector<int64_t>{1, 512, 2048});
  const double budget_s = options.budget_s > 0 ? static_cast<double>(options.budget_s) : 0.3;
  std::vector<LinearShape> shapes;
  for (const auto& [rows, cols] : options.shapes) shapes.push_back({.rows = rows, .cols = cols});
  if (shapes.empty()) shapes = Must(LinearShapes(engine));
  std::vector<std::vector<std::string>> table = {
      {"format", "rows x columns", "tokens", "us", "GB/s", "% of read", "GFLOP/s", "% of FMA peak"}};
  for (const char* format : {"NVFP4", "MXFP4", "FP8", "BF16"}) {
    for (const LinearShape& shape : shapes) {
      for (const int64_t t : tokens) {
        const Rates rates = meter.Now(engine);
        const LinearTime time = Must(MeasureLinear(engine, format, shape, t, budget_s));
        const Shares s = SharesOf(time.bytes, time.products, time.seconds, rates);
        Json row = {
            {"phase", "linear"},      {"format", format}, {"rows", time.rows},        {"cols", shape.cols},
            {"groups", shape.groups}, {"tokens", t},      {"us", 1e6 * time.seconds}, {"read_bytes_per_s", rates.read},
            {"fma_per_s", rates.fma}};
        AddShares(row, s);
        if (options.json) Print(row.dump() + "\n");
        table.push_back({format,
                         std::to_string(time.rows) + " x " + std::to_string(shape.cols) +
                             (shape.groups > 1 ? ", " + std::to_string(shape.groups) + " groups" : ""),
                         std::to_string(t), FormatFixed(1e6 * time.seconds, 0), Cell(s.gb_per_s, 1),
                         Cell(s.percent_of_read, 1), Cell(s.gflops, 1), Cell(s.percent_of_peak, 1)});
      }
    }
  }
  if (!options.json) Print(Table(table, {false, false, true, true, true, true, true, true}));
}

}  // namespace dsv4::cli
