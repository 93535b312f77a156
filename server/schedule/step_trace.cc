#include "server/schedule/step_trace.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "server/base/kept_folder.h"

namespace dsv4::server {

namespace {

// Replaces the file as a whole. A link, a pipe or a device in its place is not replaced.
bool WriteTrace(const std::string& path, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  const fs::file_type there = fs::symlink_status(path, error).type();
  if (there != fs::file_type::not_found && there != fs::file_type::regular) return false;
  if (!fs::is_directory(folder, error)) return false;
  const fs::path real = fs::canonical(folder, error);
  if (error || !fs::path(path).has_filename()) return false;
  const auto kept = KeptFolder::Open(real.string());
  return kept.ok() && kept->Write(fs::path(path).filename().string(), {&text, 1});
}

}  // namespace

void StepTrace::Add(const StepRecord& step) {
  if (!on()) return;
  if (steps_.size() == kMostSteps) steps_.pop_front();
  steps_.push_back(step);
}

Status StepTrace::Write() const {
  if (!on()) return {};
  std::string text = "end_s rows long_tokens long_sequences short_tokens short_sequences";
  for (const char* name : kStepWorkNames) text += std::string(" ") + name + "_s";
  text += " distance guess_s budget bound_s limit\n";
  const auto number = [&](double value, const char* end) {
    std::array<char, 32> digits;
    const int size = std::snprintf(digits.data(), digits.size(), "%.6f", value);
    text.append(digits.data(), static_cast<size_t>(size)).append(end);
  };
  for (const StepRecord& s : steps_) {
    const StepShape::Prompts &longs = s.shape.of(PromptRegime::kLong), &shorts = s.shape.of(PromptRegime::kShort);
    number(s.end_s, " ");
    for (const int64_t n : {s.shape.rows, longs.tokens, longs.sequences, shorts.tokens, shorts.sequences})
      text += std::to_string(n) + " ";
    for (const double seconds : s.seconds) number(seconds, " ");
    number(s.distance, " ");
    number(s.guess_s, " ");
    text += std::to_string(s.budget) + " ";
    number(s.bound_s, " ");
    text += std::to_string(s.limit) + "\n";
  }
  if (WriteTrace(path_, text)) return {};
  return InvalidArgument("--trace-steps: cannot write '" + path_ + "'; give a file in a folder that can be written");
}

Status CheckTraceFile(const std::string& path) { return StepTrace(path).Write(); }

}  // namespace dsv4::server
