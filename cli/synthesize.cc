// dsv4 synthesize: writes a checkpoint with random weights.
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "clock.h"
#include "dsv4/engine.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "options.h"
#include "progress.h"

namespace dsv4::cli {

int RunSynthesize(const SynthesizeOptions& options) {
  EngineOptions model = options.model;
  ProgressLine progress;
  model.progress = progress.Callback();
  const auto start = Clock::now();
  Must(WriteSyntheticCheckpoint(model, options.dir, options.overflow));
  const double s = Seconds(start, Clock::now());
  progress.Clear();
  int64_t bytes = 0, files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(options.dir)) {
    bytes += static_cast<int64_t>(entry.file_size());
    ++files;
  }
  const double rate = static_cast<double>(bytes) / s;
  if (options.json) {
    const nlohmann::ordered_json row = {{"phase", "write"}, {"dir", options.dir}, {"files", files}, {"bytes", bytes},
                                        {"s", s},           {"bytes_per_s", rate}};
    Print(row.dump() + "\n");
  } else {
    Print(options.dir + ": " + std::to_string(files) + " files, " + FormatBytes(bytes) + ", written in " +
          FormatFixed(s, 1) + " s (" + FormatFixed(rate / 1e9, 2) + " GB/s)\n");
  }
  return kExitDone;
}

}  // namespace dsv4::cli
