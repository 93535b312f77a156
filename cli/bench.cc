// dsv4 bench: the speed of prefill and decode, compared with the rate at which the device reads its memory.
#include "bench.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/experts.h"
#include "dsv4/inspect.h"
#include "dsv4/sampling.h"
#include "dsv4/session.h"
#include "dsv4/snapshot.h"
#include "dsv4/version.h"
#include "errors.h"
#include "format.h"
#include "io.h"
#include "model.h"
#include "progress.h"

namespace dsv4::cli {

std::vector<TokenId> SomeTokens(int64_t n, uint64_t seed, int64_t vocab) {
  StopIfInterrupted();
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    ids.push_back(static_cast<TokenId>(2 + (seed >> 33) % static_cast<uint64_t>(vocab - 2)));
  }
  return ids;
}

Rates RateMeter::Now(Engine& engine) {
  if (measured_ && Seconds(when_, Clock::now()) < kGoodFor) return rates_;
  const Result<double> fma = MeasureFmaRate(engine);
  rates_ = {.read = Must(engine.MeasureReadRate()), .fma = fma.ok() ? *fma : 0};
  when_ = Clock::now();
  measured_ = true;
  return rates_;
}

void Report(const BenchOptions& options, const Json& row, const std::string& line) {
  StopIfInterrupted();  // the measurement is incomplete
  Print((options.json ? row.dump() : line) + "\n");
}

namespace {

// The first MaxComputed tokens of a context are computed, the others are copied (AppendCopies).
constexpr int64_t kPage = 256;  // the smallest context that can be copied
constexpr int64_t kComputedOnCpu = 512, kComputedOnGpu = 8192, kComputedByAllOnGpu = int64_t{1} << 18;
constexpr int64_t kTracedSteps = 4;

using BenchMode = BenchOptions::Mode;

double Median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<int64_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

double Percentile95(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[(x.size() * 95 + 99) / 100 - 1];
}

// The options with the defaults of the mode and the device.
struct BenchPlan {
  std::vector<int64_t> prompts, contexts, batches;
  int64_t tokens = 0;
  double budget_s = 0;  // 0: no limit
  bool ops = false, on_cpu = false;
};

// Default lists of a mode.
void SetUsualLists(BenchMode mode, bool cpu, BenchPlan& plan) {
  using List = std::vector<int64_t>;
  plan.prompts = cpu ? List{512, 2048} : List{512, 2048, 8192};
  plan.contexts = cpu ? List{512, 8192, 131072} : List{512, 8192};
  plan.batches = cpu ? List{1, 4, 16} : List{1, 8};
  if (mode == BenchMode::kOps) plan.prompts = {512}, plan.contexts = {512, 8192}, plan.batches = {1, 4};
  if (mode != BenchMode::kBatches) return;
  plan.contexts = {512};
  plan.batches = cpu ? List{1, 2, 4, 8, 16} : List{1, 2, 4, 8, 16, 32, 64};
}

int64_t UsualTokens(const BenchOptions& o, bool cpu) {
  if (cpu) return 16;
  if (o.mode != BenchMode::kDrafts) return 64;
  return o.acceptance || !o.rows ? 256 : 24;
}

BenchPlan MakePlan(const BenchOptions& o, const ModelInfo& info) {
  const bool cpu = IsCpu(o.model.device);
  BenchPlan plan;
  SetUsualLists(o.mode, cpu, plan);
  plan.prompts = o.prompts.value_or(plan.prompts);
  plan.contexts = o.contexts.value_or(plan.contexts);
  plan.batches = o.batches.value_or(plan.batches);
  plan.tokens = o.tokens > 0 ? o.tokens : UsualTokens(o, cpu);
  plan.budget_s = o.budget_s > 0 ? static_cast<double>(o.budget_s) : cpu ? 20 : 0;
  plan.ops = o.ops.value_or(cpu);
  plan.on_cpu = cpu;
  const int64_t more = plan.tokens * (o.repeat + 1) + kTracedSteps;
  if (!o.contexts) std::erase_if(plan.contexts, [&](int64_t context) { return context + more > info.max_context; });
  return plan;
}

// Throws if the sequences of a figure do not fit in memory, before the others are measured for minutes. Drops default
// contexts that do not fit.
void FitIntoMemory(const BenchOptions& o, const Engine& engine, BenchPlan& plan) {
  const int64_t free = engine.free_bytes();
  if (free == 0 || plan.batches.empty()) return;  // unknown, or nothing to decode
  const int64_t batch = *std::max_element(plan.batches.begin(), plan.batches.end());
  const auto needed = [&info = engine.info(), batch](int64_t context) {
    const double one = static_cast<double>(info.kv_fixed_bytes) +
                       static_cast<double>(context) * info.kv_bytes_per_token;
    return static_cast<int64_t>(static_cast<double>(batch) * one);
  };
  const auto too_long = [&](int64_t context) { return needed(context) > free; };
  if (!o.contexts && !o.batches) std::erase_if(plan.contexts, too_long);
  const auto context = std::find_if(plan.contexts.begin(), plan.contexts.end(), too_long);
  if (context == plan.contexts.end()) return;
  throw RunError(std::to_string(batch) + " sequences of " + FormatCount(*context) + " tokens need " +
                 FormatBytes(needed(*context)) + " of KV, and " + FormatBytes(free) +
                 " are free; use smaller --batches, or shorter " +
                 (o.mode == BenchMode::kBatches ? "--context" : "--contexts"));
}

// Reports the memory planned for a GPU without KV, and the memory used on the fullest GPU without the KV of sessions.
void ReportMemory(const BenchOptions& options, const MemoryPlan& plan, const Engine& engine) {
  const int64_t planned = plan.weight_bytes + plan.widened_bytes + plan.scratch_bytes + plan.collective_bytes +
                          plan.activation_bytes;
  const int64_t used = plan.available_bytes - (engine.free_bytes() + engine.kv_bytes()) / plan.devices;
  const double off = 100 * (static_cast<double>(planned) / static_cast<double>(used) - 1);
  Report(options, Json{{"phase", "memory"}, {"gpus", plan.devices}, {"planned_bytes", planned}, {"used_bytes", used}},
         "memory per GPU: planned " + FormatBytes(planned) + ", used " + FormatBytes(used) + " (" +
             FormatFixed(off, 1) + " %)");
}

// The part of the experts' line about --expert-compute.
std::string CpuPart(const ExpertUse& use) {
  std::string part;
  if (use.cpu_experts > 0)
    part += "; the CPU computed " + FormatCount(use.cpu_experts) + " in " + FormatFixed(use.cpu_seconds, 2) + " s";
  if (use.cpu_rate > 0) {
    part += "; measured at load: CPU " + FormatFixed(use.cpu_rate / 1e9, 1) + " GB/s, link " +
            FormatFixed(use.link_rate / 1e9, 1) + " GB/s";
  }
  return part;
}

// If experts are counted, reports how many chosen experts were in device memory, and the copies of the others.
void ReportExperts(const BenchOptions& options, const ExpertUse& use) {
  if (!use.counted || use.chosen == 0) return;
  const double hits = static_cast<double>(use.chosen_resident) / static_cast<double>(use.chosen);
  Report(options,
         Json{{"phase", "experts"},
              {"choices", use.chosen},
              {"hits", use.chosen_resident},
              {"fetched_bytes", use.fetched_bytes},
              {"swaps", use.swaps},
              {"moved_bytes", use.moved_bytes},
              {"wait_seconds", use.wait_seconds},
              {"cpu_experts", use.cpu_experts},
              {"cpu_seconds", use.cpu_seconds},
              {"cpu_bytes_per_s", use.cpu_rate},
              {"link_bytes_per_s", use.link_rate}},
         "experts: " + FormatFixed(100 * hits, 2) + " % of " + FormatCount(static_cast<int64_t>(use.chosen)) +
             " choices were in device memory; " + FormatBytes(static_cast<int64_t>(use.fetched_bytes)) +
             " read from host memory, prompts waited " + FormatFixed(1e3 * use.wait_seconds, 1) + " ms for them; " +
             FormatCount(use.swaps) + " pairs swapped between host and device" + CpuPart(use));
}

class Bench {
 public:
  Bench(const BenchOptions& options, const BenchPlan& plan, Engine& engine, RateMeter& rates, ProgressLine& progress)
      : options_(options),
        plan_(plan),
        engine_(engine),
        rates_(rates),
        progress_(progress),
        first_rates_(rates.Now(engine)) {}

  void Prefill(int64_t tokens) {
    const Rates rates = RatesNow();
    const std::vector<TokenId> ids = SomeTokens(tokens, 1, engine_.info().vocab_size);
    std::vector<float> logits;
    const auto run = [&] {
      auto session = Must(engine_.NewSession());
      const auto start = Clock::now();
      Must(session->Append(ids, LogitRows::kLast, &logits));
      return Seconds(start, Clock::now());
    };
    std::vector<double> times;
    const auto start = Clock::now();
    const std::string name = "prefill " + std::to_string(tokens) + " tokens";
    progress_.Update(name, 0, options_.repeat + 1);
    run();  // warms up
    while (static_cast<int64_t>(times.size()) < options_.repeat && (times.empty() || !Spent(start))) {
      progress_.Update(name, static_cast<int64_t>(times.size()) + 1, options_.repeat + 1);
      StopIfInterrupted();
      times.push_back(run());
    }
    progress_.Clear();
    const double s = Median(times);
    Json row = {{"phase", "prefill"},
                {"tokens", tokens},
                {"runs", times.size()},
                {"ms", s * 1e3},
                {"tokens_per_s", static_cast<double>(tokens) / s}};
    std::string line = name + ": " + FormatFixed(s * 1e3, 1) + " ms, " +
                       FormatFixed(static_cast<double>(tokens) / s, 0) + " tok/s";
    if (!plan_.ops) return Report(options_, row, line);
    double traced = 0;
    const std::vector<OpTime> ops = Must(TraceOps(engine_, [&] {
      traced = run();
      return Status{};
    }));
    double products = 0;
    for (const OpTime& op : ops) products += op.products;
    row["gflops"] = 2 * products / s / 1e9;
    row["fma_per_s"] = rates.fma;
    row["percent_of_fma_peak"] = 100 * products / s / rates.fma;
    line += ", " + FormatFixed(2 * products / s / 1e9, 1) + " GFLOP/s, " +
            FormatFixed(100 * products / s / rates.fma, 1) + " % of the FMA peak (" +
            FormatFixed(2 * rates.fma / 1e9, 1) + ")";
    Report(options_, row, line);
    ReportOps(options_, ops, 1, traced, rates, {{"phase", "op"}, {"of", "prefill"}, {"tokens", tokens}});
  }

  struct StepFigure {
    double seconds = 0;       // per step
    double tokens_per_s = 0;  // of all sequences
  };

  StepFigure Decode(int64_t batch, int64_t context) {
    const Rates rates = RatesNow();
    const int64_t v = engine_.info().vocab_size;
    const int64_t computed = std::min(context, MaxComputed(batch));
    const std::vector<std::unique_ptr<Session>> sessions = Fill(batch, context, computed);
    std::vector<std::unique_ptr<Sampler>> samplers;
    std::vector<DecodeItem> items;
    for (int64_t i = 0; i < batch; ++i) {
      SamplingParams params = options_.sampling;
      params.seed = static_cast<uint64_t>(i);
      samplers.push_back(Must(Sampler::Create(params, v)));
      const TokenId first = SomeTokens(1, static_cast<uint64_t>(i) + 1000, v).front();
      items.push_back({.session = sessions[static_cast<size_t>(i)].get(),
                       .sampler = samplers.back().get(),
                       .first = first,
                       .max_tokens = plan_.tokens * (options_.repeat + 1)});
    }
    const std::string name = "decode batch " + std::to_string(batch) + " context " + std::to_string(context);
    const DecodeTimes times = TimeSteps(items, name);
    const std::vector<double>& steps = times.steps;
    const double s = TypicalStep(steps);
    const auto num_steps = static_cast<double>(std::max<size_t>(steps.size(), 1));
    const double tokens = static_cast<double>(batch) + static_cast<double>(times.drafted) / num_steps;
    const double bytes = engine_.StepBytes(batch, context + times.warm + static_cast<int64_t>(steps.size() / 2));
    const double floor = bytes / rates.read;
    Report(options_,
           {{"phase", "decode"},
            {"batch", batch},
            {"context", context},
            {"computed_context", computed},
            {"steps", steps.size()},
            {"ms_per_step", s * 1e3},
            {"ms_per_step_p95", Percentile95(steps) * 1e3},
            {"tokens_per_step", tokens},
            {"tokens_per_s", tokens / s},
            {"bytes_per_step", bytes},
            {"read_bytes_per_s", rates.read},
            {"floor_ms", floor * 1e3},
            {"percent_of_floor", 100 * floor / s}},
           name + ": " + FormatFixed(s * 1e3, 3) + " ms per step, " + FormatFixed(tokens / s, 1) + " tok/s, " +
               FormatFixed(100 * floor / s, 1) + " % of the byte floor (" + FormatFixed(floor * 1e3, 3) + " ms)");
    if (!plan_.ops) return {s, tokens / s};
    for (DecodeItem& item : items) item.max_tokens = kTracedSteps;
    const auto traced = Clock::now();
    const std::vector<OpTime> ops = Must(
        TraceOps(engine_, [&] { return engine_.Decode(items, [](size_t, const SampledToken&) { return true; }); }));
    ReportOps(options_, ops, kTracedSteps, Seconds(traced, Clock::now()), rates,
              {{"phase", "op"}, {"of", "decode"}, {"batch", batch}, {"context", context}});
    return {s, tokens / s};
  }

 private:
  // The rates of a busy CPU change, so every figure on a CPU has its own.
  Rates RatesNow() { return plan_.on_cpu ? rates_.Now(engine_) : first_rates_; }

  bool Spent(Clock::time_point start) const {
    return plan_.budget_s > 0 && Seconds(start, Clock::now()) > plan_.budget_s;
  }

  struct DecodeTimes {
    std::vector<double> steps;
    int64_t warm = 0;     // warm-up steps before `steps`
    int64_t drafted = 0;  // accepted draft tokens in `steps`
  };

  // Returns the times of steps, measured when the tokens arrive. The first run is the warm-up, which ends after a
  // quarter of the budget.
  DecodeTimes TimeSteps(std::span<const DecodeItem> items, const std::string& name) {
    DecodeTimes times;
    const Clock::time_point start = Clock::now();
    Clock::time_point last = start;
    int64_t seen = 0;
    bool more = true;
    Must(engine_.Decode(items, [&](size_t item, const SampledToken& token) {
      if (token.drafted && !times.steps.empty()) ++times.drafted;
      if (item != items.size() - 1 || token.drafted) return more;
      const auto now = Clock::now();
      ++seen;
      const bool warms = seen <= plan_.tokens &&
                         !(plan_.budget_s > 0 && seen > 1 && Seconds(start, now) > plan_.budget_s / 4);
      if (warms) {
        times.warm = seen;
      } else {
        times.steps.push_back(Seconds(last, now));
      }
      last = now;
      progress_.Update(name, seen, items.front().max_tokens);
      more = (times.steps.size() < 3 || !Spent(start)) && !Interrupted();
      return more;
    }));
    progress_.Clear();
    StopIfInterrupted();
    return times;
  }

  // Returns the median, over runs of plan_.tokens steps, of the mean time of a step. Returns the median step if no run
  // is complete.
  double TypicalStep(const std::vector<double>& steps) const {
    const auto run = static_cast<size_t>(plan_.tokens);
    if (steps.size() < run) return Median(steps);
    std::vector<double> means;
    for (size_t i = 0; i + run <= steps.size(); i += run) {
      double sum = 0;
      for (size_t j = i; j < i + run; ++j) sum += steps[j];
      means.push_back(sum / static_cast<double>(run));
    }
    return Median(means);
  }

  // Returns the number of context tokens to compute. On a CPU all sequences of a batch share one page of them.
  int64_t MaxComputed(int64_t batch) const {
    if (plan_.on_cpu) return batch > 1 ? kPage : kComputedOnCpu;
    return std::max(kComputedOnGpu, kComputedByAllOnGpu / batch);
  }

  // Returns sessions with `context` tokens each: the first `computed` are computed, the others copied.
  std::vector<std::unique_ptr<Session>> Fill(int64_t batch, int64_t context, int64_t computed) {
    const int64_t v = engine_.info().vocab_size;
    std::vector<std::unique_ptr<Session>> sessions;
    std::shared_ptr<const KvSnapshot> start;
    for (int64_t i = 0; i < batch; ++i) {
      const std::vector<TokenId> ids = SomeTokens(context, static_cast<uint64_t>(i) + 7, v);
      if (start == nullptr) {
        sessions.push_back(Must(engine_.NewSession()));
        Must(sessions.back()->Append(std::span(ids).first(static_cast<size_t>(computed)), LogitRows::kNone, nullptr,
                                     progress_.Callback()));
        if (plan_.on_cpu && batch > 1) start = Must(sessions.back()->Snapshot());
      } else {
        sessions.push_back(Must(engine_.NewSession(*start)));
      }
      if (computed < context)
        Must(AppendCopies(*sessions.back(), std::span(ids).subspan(static_cast<size_t>(computed))));
    }
    return sessions;
  }

  const BenchOptions& options_;
  const BenchPlan& plan_;
  Engine& engine_;
  RateMeter& rates_;
  ProgressLine& progress_;
  Rates first_rates_;
};

// Prints the first row: model, device and rates.
void ReportHead(const BenchOptions& options, const EngineOptions& model, Engine& engine, const Rates& rates,
                double load_s) {
  const BuildInfo build = GetBuildInfo();
  const std::string name = model.synthetic.shape.empty() ? model.model_dir : "synthetic " + model.synthetic.shape;
  constexpr const char* kExperts[] = {"nvfp4", "cast", "mxfp4"};
  Json head = {{"model", name},
               {"layers", engine.info().num_layers},
               {"weight_bytes", engine.info().weight_bytes},
               {"fp8_dense", model.synthetic.fp8_dense},
               {"experts", kExperts[static_cast<size_t>(model.synthetic.experts)]},
               {"tight_experts", model.tight_experts},
               {"device", model.device},
               {"commit", build.commit},
               {"load_s", load_s},
               {"read_bytes_per_s", rates.read}};
  std::string line = name + ", " + std::to_string(engine.info().num_layers) + " layers on " + model.device +
                     "; memory reads " + FormatFixed(rates.read / 1e9, 1) + " GB/s; loaded in " +
                     FormatFixed(load_s, 1) + " s";
  if (const Result<CpuInfo> cpu = DescribeCpu(engine); cpu.ok()) {
    head["fma_per_s"] = rates.fma;
    head["instructions"] = cpu->instructions;
    head["threads"] = cpu->num_threads;
    head["cores"] = cpu->num_cores;
    head["nodes"] = cpu->num_nodes;
    head["pinned"] = cpu->pinned;
    head["cpu"] = build.cpu_features;
    line += "; " + cpu->instructions + ", " + std::to_string(cpu->num_threads) + " threads on " +
            std::to_string(cpu->num_cores) + " cores" + (cpu->pinned ? ", pinned" : "") + ", FMA peak " +
            FormatFixed(2 * rates.fma / 1e9, 1) + " GFLOP/s";
  }
  Report(options, head, line);
}

// Measures decode at each batch size and compares the throughput with the first one.
void CompareBatches(const BenchOptions& options, const BenchPlan& plan, Bench& bench) {
  std::vector<std::vector<std::string>> table = {{"batch", "ms per step", "tok/s", "times the first"}};
  double first = 0;
  for (const int64_t batch : plan.batches) {
    const Bench::StepFigure figure = bench.Decode(batch, plan.contexts.front());
    if (first == 0) first = figure.tokens_per_s;
    const double times = figure.tokens_per_s / first;
    table.push_back({std::to_string(batch), FormatFixed(1e3 * figure.seconds, 3), FormatFixed(figure.tokens_per_s, 1),
                     FormatFixed(times, 2)});
    if (options.json) Print(Json{{"phase", "batch"}, {"batch", batch}, {"times_first", times}}.dump() + "\n");
  }
  if (!options.json) Print(Table(table, {true, true, true, true}));
}

void MeasureSteps(const BenchPlan& plan, Bench& bench) {
  for (const int64_t tokens : plan.prompts) bench.Prefill(tokens);
  for (const int64_t context : plan.contexts) {
    for (const int64_t batch : plan.batches) bench.Decode(batch, context);
  }
}

}  // namespace

int RunBench(const BenchOptions& options) {
  EngineOptions model = options.model;
  if (model.synthetic.shape.empty()) model.model_dir = FindModelDir(model.model_dir);
  // A batch is one pass, also above kMaxDecodeRows, where the bits of a row depend on the batch.
  for (const int64_t batch : options.batches.value_or(std::vector<int64_t>()))
    model.max_decode_rows = std::max(model.max_decode_rows, batch);
  if (options.mode == BenchMode::kErrors) return BenchErrors(options, model);
  if (options.mode == BenchMode::kStart) return BenchStart(options, model);
  CountedExperts counted(options.count_experts_file, model.offload);
  MemoryPlan memory{};
  model.on_plan = [&memory](const MemoryPlan& plan) { memory = plan; };
  const auto start = Clock::now();
  ProgressLine progress;
  const std::unique_ptr<Engine> engine = LoadEngine(model, progress, TellPlan::kAlways);
  const double load_s = Seconds(start, Clock::now());
  counted.Begin(*engine);
  RateMeter meter;
  ReportHead(options, model, *engine, meter.Now(*engine), load_s);
  if (options.mode == BenchMode::kLinears) {
    BenchLinears(options, *engine, meter);
    return kExitDone;
  }
  BenchPlan plan = MakePlan(options, engine->info());
  FitIntoMemory(options, *engine, plan);
  if (options.mode == BenchMode::kDrafts) {
    for (const int64_t context : plan.contexts) BenchDrafts(options, *engine, plan.batches, context, plan.tokens);
    counted.Write(*engine);
    return kExitDone;
  }
  Bench bench(options, plan, *engine, meter, progress);
  if (options.mode == BenchMode::kBatches) {
    CompareBatches(options, plan, bench);
  } else {
    MeasureSteps(plan, bench);
  }
  if (!IsCpu(model.device)) ReportMemory(options, memory, *engine);
  ReportExperts(options, Must(engine->expert_use()));
  counted.Write(*engine);
  return kExitDone;
}

}  // namespace dsv4::cli
