#include "progress.h"

#include <algorithm>
#include <string>

#include "format.h"
#include "io.h"

namespace dsv4::cli {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

ProgressLine::ProgressLine() : enabled_(StderrIsTerminal()), start_(steady_clock::now()), last_(start_) {}

void ProgressLine::Update(const std::string& label, int64_t done, int64_t total, const std::string& detail) {
  if (!enabled_) return;
  const auto now = steady_clock::now();
  if (now - start_ < milliseconds(300) || (shown_ && done < total && now - last_ < milliseconds(100))) return;
  last_ = now;
  shown_ = true;
  constexpr int64_t kWidth = 30;
  const double part = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1.0;
  const auto filled = static_cast<size_t>(part * kWidth);
  const std::string percent = " " + FormatFixed(100 * part, 0) + "%";
  std::string line = label + " [" + std::string(filled, '#') + std::string(kWidth - filled, '.') + "]" + percent;
  if (!detail.empty()) line += "  " + detail;
  // A wrapped line cannot be erased. A narrow terminal gets no bar, and only the text that fits.
  const size_t columns = StderrColumns();
  if (line.size() >= columns) line = (label + percent).substr(0, columns - 1);
  PrintError("\r\033[K" + line);
}

void ProgressLine::Clear() {
  if (shown_) PrintError("\r\033[K");
  shown_ = false;
  start_ = steady_clock::now();
}

ProgressFn ProgressLine::Callback() {
  return [this](const Progress& p) {
    if (p.phase != Progress::Phase::kPrefill) {
      Update(p.phase == Progress::Phase::kLoading ? "loading" : "writing", p.done, p.total,
             FormatBytes(p.done) + " of " + FormatBytes(p.total));
    } else {
      Update("reading the prompt", p.done, p.total,
             std::to_string(p.done) + " of " + std::to_string(p.total) + " tokens");
    }
    return !Interrupted();
  };
}

}  // namespace dsv4::cli
