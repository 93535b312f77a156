// dsv4 bench start: one start, by phases.
#include <cstddef>
#include <cstdint>
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

// Returns the age of this process, with the resolution of a clock tick (10 ms).
double SecondsSinceProcessStart() {
  std::ifstream stat("/proc/self/stat");
  std::string text;
  std::getline(stat, text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // the program's name may contain any character
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // 22: starttime, in clock ticks since the machine started
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 -
         std::stod(field) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Returns the FNV-1a hash of the bits of `values`, to compare the logits of two runs.
std::string HashOf(std::span<const float> values) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const std::byte b : std::as_bytes(values)) hash = (hash ^ std::to_integer<uint64_t>(b)) * 0x100000001B3u;
  return std::to_string(hash);
}

// Measures one start and returns the JSON row of the report.
Json MeasureStart(const BenchOptions& options, const EngineOptions& model) {
  const double main_s = SecondsSinceProcessStart();
  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress, TellPlan::kAlways);
  const double loaded_s = SecondsSinceProcessStart();
  const int64_t v = engine->info().vocab_size, count = options.start_prompt;
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

int BenchStart(const BenchOptions& options, const EngineOptions& model) {
  const Json row = MeasureStart(options, model);
  const auto s = [&](const char* name) { return FormatFixed(row[name].get<double>(), 2) + " s"; };
  Report(options, row,
         "first token after " + s("first_token_s") + ": process " + s("main_s") + ", device " + s("open_s") +
             ", mapping " + s("map_s") + ", allocation " + s("allocate_s") + ", reading " + s("read_s") + " (" +
             FormatBytes(row["read_bytes"].get<int64_t>()) + ", " +
             FormatFixed(row["read_bytes_per_s"].get<double>() / 1e9, 2) + " GB/s), packing after it " + s("pack_s") +
             ", prefill of " + row["prompt"].dump() + " tokens " + s("prefill_s") +
             "; second token, on a GPU with the capture of its CUDA graph, " + s("record_and_second_token_s") +
             "; snapshot fingerprint " + s("fingerprint_s"));
  return kExitDone;
}

}  // namespace dsv4::cli
