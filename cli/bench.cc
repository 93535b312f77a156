// dsv4 bench: prefill and decode speed, against the rate at which the device reads its memory.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <time.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "dsv4/engine.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"
#include "dsv4/version.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "model.h"
#include "options.h"
#include "progress.h"

namespace dsv4::cli {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Ids spread over the vocabulary, never the end token; the same in every run.
std::vector<TokenId> SomeTokens(int64_t n, uint64_t seed, int64_t vocab) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<TokenId>(2 + (seed >> 33) % static_cast<uint64_t>(vocab - 2)));
  }
  return ids;
}

double Median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<int64_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

double Percentile95(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[(x.size() * 95 + 99) / 100 - 1];
}

class Bench {
 public:
  Bench(const BenchOptions& options, Engine& engine, double read_rate)
      : options_(options), engine_(engine), read_rate_(read_rate) {}

  Json Prefill(int64_t tokens) {
    const std::vector<TokenId> ids = SomeTokens(tokens, 1, engine_.info().vocab_size);
    std::vector<float> logits;
    std::vector<double> times;
    for (int64_t run = 0; run <= options_.repeat; ++run) {
      auto session = Must(engine_.NewSession());
      const auto start = Clock::now();
      Must(session->Append(ids, LogitRows::kLast, &logits));
      if (run > 0) times.push_back(Seconds(start, Clock::now()));  // the first one warms up
    }
    const double s = Median(times);
    return {{"phase", "prefill"}, {"tokens", tokens}, {"ms", s * 1e3}, {"tokens_per_s", static_cast<double>(tokens) / s}};
  }

  Json Decode(int64_t batch, int64_t context) {
    const int64_t v = engine_.info().vocab_size;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<DecodeItem> items;
    const int64_t count = options_.tokens * (options_.repeat + 1);
    for (int64_t i = 0; i < batch; ++i) {
      sessions.push_back(Must(engine_.NewSession()));
      const std::vector<TokenId> ids = SomeTokens(context, static_cast<uint64_t>(i) + 7, v);
      std::vector<float> logits;
      Must(sessions.back()->Append(ids, LogitRows::kNone, nullptr));
      SamplingParams params = options_.sampling;
      params.seed = static_cast<uint64_t>(i);
      samplers.push_back(Must(Sampler::Create(params, v)));
      items.push_back({.session = sessions.back().get(), .sampler = samplers.back().get(), .first = ids.back(), .max_tokens = count});
    }
    // Times of whole steps, seen where the tokens arrive.
    std::vector<double> steps, runs;
    Clock::time_point last = Clock::now(), run_start = last;
    int64_t seen = 0;
    Must(engine_.Decode(items, [&](size_t item, const SampledToken&) {
      if (item != items.size() - 1) return true;
      const auto now = Clock::now();
      ++seen;
      if (seen > options_.tokens) steps.push_back(Seconds(last, now));
      if (seen % options_.tokens == 0) {
        if (seen > options_.tokens) runs.push_back(Seconds(run_start, now) / static_cast<double>(options_.tokens));
        run_start = now;
      }
      last = now;
      return true;
    }));
    const double s = Median(runs);
    const double bytes = engine_.StepBytes(batch, context + count / 2);
    const double floor = bytes / read_rate_;
    return {{"phase", "decode"}, {"batch", batch}, {"context", context}, {"ms_per_step", s * 1e3},
            {"ms_per_step_p95", Percentile95(steps) * 1e3}, {"tokens_per_s", static_cast<double>(batch) / s},
            {"bytes_per_step", bytes}, {"floor_ms", floor * 1e3}, {"percent_of_floor", 100 * floor / s}};
  }

 private:
  const BenchOptions& options_;
  Engine& engine_;
  double read_rate_;
};

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

// One start, from the process to the second token: the first comes from the prompt's logits, the second from a recorded
// decode step, which is recorded then.
int FirstToken(const BenchOptions& options, const EngineOptions& model) {
  const double main_s = SecondsSinceProcessStart();
  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress, /*tell_plan=*/true);
  const double loaded_s = SecondsSinceProcessStart();
  const int64_t v = engine->info().vocab_size, count = options.prompts.empty() ? 512 : options.prompts.front();
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
  const LoadTimes& t = engine->load_times();
  const double rate = t.read > 0 ? static_cast<double>(t.bytes) / t.read : 0;
  const Json row = {{"phase", "first token"}, {"model", model.model_dir}, {"layers", engine->info().num_layers},
                    {"weight_bytes", engine->info().weight_bytes}, {"device", model.device}, {"commit", GetBuildInfo().commit},
                    {"prompt", count}, {"main_s", main_s}, {"open_s", t.open}, {"map_s", t.map}, {"allocate_s", t.allocate},
                    {"read_s", t.read}, {"pack_s", t.pack}, {"loaded_s", loaded_s}, {"read_bytes", t.bytes},
                    {"cached_bytes", t.cached_bytes}, {"direct", t.direct}, {"read_bytes_per_s", rate}, {"prefill_s", prefill_s},
                    {"first_token_s", first_s}, {"record_and_second_token_s", second_s}, {"recording_bytes", recording_bytes}};
  if (options.json) {
    Print(row.dump() + "\n");
    return kExitDone;
  }
  const auto s = [](double seconds) { return FormatFixed(seconds, 2) + " s"; };
  Print("first token after " + s(first_s) + ": process " + s(main_s) + ", device " + s(t.open) + ", mapping " + s(t.map) +
        ", memory " + s(t.allocate) + ", reading " + s(t.read) + " (" + FormatBytes(t.bytes) + ", " + FormatFixed(rate / 1e9, 2) +
        " GB/s), packing behind it " + s(t.pack) + ", prefill of " + std::to_string(count) + " tokens " + s(prefill_s) +
        "; recording and second token " + s(second_s) + "\n");
  return kExitDone;
}

int WriteCheckpoint(const BenchOptions& options) {
  EngineOptions model = options.model;
  ProgressLine progress;
  model.progress = progress.Callback();
  const auto start = Clock::now();
  Must(WriteSyntheticCheckpoint(model, options.disk));
  const double s = Seconds(start, Clock::now());
  progress.Clear();
  int64_t bytes = 0, files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(options.disk)) {
    bytes += static_cast<int64_t>(entry.file_size());
    ++files;
  }
  const double rate = static_cast<double>(bytes) / s;
  if (options.json) {
    Print(Json{{"phase", "write"}, {"dir", options.disk}, {"files", files}, {"bytes", bytes}, {"s", s}, {"bytes_per_s", rate}}.dump() + "\n");
  } else {
    Print(options.disk + ": " + std::to_string(files) + " files, " + FormatBytes(bytes) + ", written in " + FormatFixed(s, 1) +
          " s (" + FormatFixed(rate / 1e9, 2) + " GB/s)\n");
  }
  return kExitDone;
}

}  // namespace

int RunBench(const BenchOptions& options) {
  if (!options.disk.empty()) return WriteCheckpoint(options);
  EngineOptions model = options.model;
  if (model.synthetic.shape.empty()) model.model_dir = FindModelDir(model.model_dir);
  if (options.first_token) return FirstToken(options, model);
  const auto start = Clock::now();
  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress, /*tell_plan=*/true);
  const double load_s = Seconds(start, Clock::now());
  const double read_rate = Must(engine->MeasureReadRate());
  const BuildInfo build = GetBuildInfo();
  const std::string name = model.synthetic.shape.empty() ? model.model_dir : "synthetic " + model.synthetic.shape;
  Json head = {{"model", name}, {"layers", engine->info().num_layers}, {"weight_bytes", engine->info().weight_bytes},
               {"fp8_dense", model.synthetic.fp8_dense}, {"device", model.device}, {"commit", build.commit},
               {"load_s", load_s}, {"read_bytes_per_s", read_rate}};
  if (options.json) {
    Print(head.dump() + "\n");
  } else {
    Print(name + ", " + std::to_string(engine->info().num_layers) + " layers on " + model.device + "; reads " +
          FormatFixed(read_rate / 1e9, 1) + " GB/s; loaded in " + FormatFixed(load_s, 1) + " s\n");
  }
  Bench bench(options, *engine, read_rate);
  const auto report = [&](const Json& row) {
    if (options.json) {
      Print(row.dump() + "\n");
    } else if (row["phase"] == "prefill") {
      Print("prefill " + std::to_string(row["tokens"].get<int64_t>()) + " tokens: " + FormatFixed(row["ms"].get<double>(), 1) +
            " ms, " + FormatFixed(row["tokens_per_s"].get<double>(), 0) + " tok/s\n");
    } else {
      Print("decode batch " + std::to_string(row["batch"].get<int64_t>()) + " context " +
            std::to_string(row["context"].get<int64_t>()) + ": " + FormatFixed(row["ms_per_step"].get<double>(), 3) +
            " ms a step, " + FormatFixed(row["tokens_per_s"].get<double>(), 1) + " tok/s, " +
            FormatFixed(row["percent_of_floor"].get<double>(), 1) + " % of the byte floor (" +
            FormatFixed(row["floor_ms"].get<double>(), 3) + " ms)\n");
    }
  };
  for (const int64_t tokens : options.prompts) report(bench.Prefill(tokens));
  for (const int64_t context : options.contexts) {
    for (const int64_t batch : options.batches) report(bench.Decode(batch, context));
  }
  return 0;
}

}  // namespace dsv4::cli
