// The parts of dsv4 bench that measure no steps: one start by phases, and writing a synthetic checkpoint.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"
#include "dsv4/version.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "model.h"

namespace dsv4::cli {

namespace {

// Since the kernel made this process; to its clock tick, 10 ms.
double SecondsSinceProcessStart() {
  std::ifstream stat("/proc/self/stat");
  std::string text;
  std::getline(stat, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // the name may hold anything
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // 22: starttime, in clock ticks since the machine started
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 -
         std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Of the bits of `values`: which two runs have the same logits (FNV-1a).
std::string HashOf(std::span<const float> values) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const std::byte b : std::as_bytes(values)) hash = (hash ^ std::to_integer<uint64_t>(b)) * 0x100000001B3u;
  return std::to_string(hash);
}

// One start, as the row of its report.
Json MeasureStart(const BenchOptions& options, const EngineOptions& model) {
  const double main_s = SecondsSinceProcessStart();
  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress, TellPlan::kAlways);
  const double loaded_s = SecondsSinceProcessStart();
  const int64_t v = engine->info().vocab_size,
                count = options.prompts && !options.prompts->empty() ? options.prompts->front() : 512;
  auto session = Must(engine->NewSession());
  std::vector<float> logits;
  const auto prefill_start = Clock::now();
  Must(session->Append(SomeTokens(count, 1, v), LogitRows::kLast, &logits));
  const double prefill_s = Seconds(prefill_start, Clock::now());
  SamplingParams params = options.sampling;
  params.seed = 1;
  auto sampler = Must(Sampler::Create(params, v));
  const TokenId first = Must(sampler->Sample(logits)).id;
  const double first_s = SecondsSinceProcessStart();
  const DecodeItem item{.session = session.get(), .sampler = sampler.get(), .first = first, .max_tokens = 1};
  const int64_t free_before = engine->free_bytes();
  const auto decode_start = Clock::now();
  Must(engine->Decode({&item, 1}, [](size_t, const SampledToken&) { return true; }));
  const double second_s = Seconds(decode_start, Clock::now());
  const int64_t recording_bytes = free_before - engine->free_bytes();
  const auto fingerprint_start = Clock::now();
  Must(engine->SnapshotFingerprint());
  const double fingerprint_s = Seconds(fingerprint_start, Clock::now());
  const LoadTimes& t = engine->load_times();
  return {{"phase", "first token"},
          {"model", model.model_dir},
          {"layers", engine->info().num_layers},
          {"weight_bytes", engine->info().weight_bytes},
          {"device", model.device},
          {"commit", GetBuildInfo().commit},
          {"prompt", count},
          {"main_s", main_s},
          {"open_s", t.open},
          {"map_s", t.map},
          {"allocate_s", t.allocate},
          {"read_s", t.read},
          {"pack_s", t.pack},
          {"loaded_s", loaded_s},
          {"read_bytes", t.bytes},
          {"cached_bytes", t.cached_bytes},
          {"direct", t.direct},
          {"read_bytes_per_s", t.read > 0 ? static_cast<double>(t.bytes) / t.read : 0.0},
          {"prefill_s", prefill_s},
          {"logits_hash", HashOf(logits)},
          {"first_token_s", first_s},
          {"record_and_second_token_s", second_s},
          {"recording_bytes", recording_bytes},
          {"fingerprint_s", fingerprint_s}};
}

}  // namespace

int BenchFirstToken(const BenchOptions& options, const EngineOptions& model) {
  const Json row = MeasureStart(options, model);
  const auto s = [&](const char* name) { return FormatFixed(row[name].get<double>(), 2) + " s"; };
  Report(options, row,
         "first token after " + s("first_token_s") + ": process " + s("main_s") + ", device " + s("open_s") +
             ", mapping " + s("map_s") + ", memory " + s("allocate_s") + ", reading " + s("read_s") + " (" +
             FormatBytes(row["read_bytes"].get<int64_t>()) + ", " +
             FormatFixed(row["read_bytes_per_s"].get<double>() / 1e9, 2) + " GB/s), packing behind it " + s("pack_s") +
             ", prefill of " + row["prompt"].dump() + " tokens " + s("prefill_s") + "; recording and second token " +
             s("record_and_second_token_s") + "; fingerprint of the weights, which files of KV carry, " +
             s("fingerprint_s"));
  return kExitDone;
}

int BenchWriteCheckpoint(const BenchOptions& options) {
  EngineOptions model = options.model;
  ProgressLine progress;
  model.progress = progress.Callback();
  const auto start = Clock::now();
  Must(WriteSyntheticCheckpoint(model, options.disk, options.disk_overflow));
  const double s = Seconds(start, Clock::now());
  progress.Clear();
  int64_t bytes = 0, files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(options.disk)) {
    bytes += static_cast<int64_t>(entry.file_size());
    ++files;
  }
  const double rate = static_cast<double>(bytes) / s;
  if (options.json) {
    Print(Json{{"phase", "write"},
               {"dir", options.disk},
               {"files", files},
               {"bytes", bytes},
               {"s", s},
               {"bytes_per_s", rate}}
              .dump() +
          "\n");
  } else {
    Print(options.disk + ": " + std::to_string(files) + " files, " + FormatBytes(bytes) + ", written in " +
          FormatFixed(s, 1) + " s (" + FormatFixed(rate / 1e9, 2) + " GB/s)\n");
  }
  return kExitDone;
}

}  // namespace dsv4::cli
