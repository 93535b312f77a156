#include "dsv4/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "base/str.h"
#include "device/cpu_rates.h"
#include "device/op_trace.h"
#include "engine/engine_impl.h"
#include "ops/fill_weight/fill_weight.h"
#include "ops/linear/linear.h"

namespace dsv4 {

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Result<EngineImpl*> OnCpu(Engine& engine) {
  auto* impl = dynamic_cast<EngineImpl*>(&engine);
  if (impl == nullptr || impl->runner().device().kind() != DeviceKind::kCpu) {
    return Unsupported("this measurement is for the CPU only; use --device cpu");
  }
  return impl;
}

}  // namespace

Result<CpuInfo> DescribeCpu(Engine& engine) {
  DSV4_ASSIGN_OR_RETURN(EngineImpl* const impl, OnCpu(engine));
  const std::vector<Core> cores = UsableCores();
  return CpuInfo{.num_threads = impl->pool().num_threads(),
                 .num_cores = static_cast<int>(cores.size()),
                 .num_nodes = NumNodes(cores),
                 .pinned = !impl->pool().cores().empty(),
                 .instructions = DescribeLinear(impl->runner().context()).chosen};
}

Result<double> MeasureFmaRate(Engine& engine) {
  DSV4_ASSIGN_OR_RETURN(EngineImpl* const impl, OnCpu(engine));
  const PoolUse use(&impl->pool());
  return CpuFmaRate(&impl->pool());
}

Result<std::vector<OpTime>> TraceOps(Engine& engine, const std::function<Status()>& work) {
  DSV4_ASSIGN_OR_RETURN(EngineImpl* const impl, OnCpu(engine));
  OpTrace trace;
  impl->runner().context().trace = &trace;
  const Status status = work();
  impl->runner().context().trace = nullptr;
  DSV4_RETURN_IF_ERROR(status);
  std::vector<OpTime> times;
  for (const OpTrace::Row& row : trace.rows()) {
    times.push_back({.op = row.op,
                     .detail = row.detail,
                     .calls = row.calls,
                     .seconds = row.seconds,
                     .bytes = row.bytes,
                     .products = row.products});
  }
  return times;
}

Result<std::vector<LinearShape>> LinearShapes(Engine& engine) {
  DSV4_ASSIGN_OR_RETURN(EngineImpl* const impl, OnCpu(engine));
  return impl->runner().model().LinearShapes();
}

Result<LinearTime> MeasureLinear(Engine& engine, const std::string& format, const LinearShape& shape,
                                 int64_t num_tokens, double budget) {
  constexpr int64_t kAllBytes = int64_t{256} << 20;  // larger than last-level caches
  DSV4_ASSIGN_OR_RETURN(EngineImpl* const impl, OnCpu(engine));
  const PoolUse use(&impl->pool());
  ExecContext ctx = impl->runner().context();
  ctx.tiles = impl->runner().UsesTiles(num_tokens);
  QuantTensor w{.rows = shape.rows, .cols = shape.cols};
  const auto* f = std::find_if(std::begin(kWeightFormats) + 1, std::end(kWeightFormats),  // all but F32
                               [&](const WeightFormatInfo& info) { return info.family == format; });
  if (f == std::end(kWeightFormats)) {
    return InvalidArgument(StrCat("weight format '", format, "'; accepted: NVFP4, MXFP4, FP8, BF16"));
  }
  w.format = f->format;
  w.scale_dtype = f->scale;
  if (f->global_scale) w.global_scale = FillGlobalScale(1.0f);
  const int64_t most_rows = std::max<int64_t>(kAllBytes / w.row_bytes(), 1);
  if (shape.groups == 1 && w.rows > most_rows) w.rows = most_rows;
  const int64_t code_bytes = CeilDiv(w.rows * w.row_bytes(), 256) * 256,
                each = code_bytes + CeilDiv(FileScaleBytes(w), 256) * 256;
  const int64_t copies = CeilDiv(kAllBytes, each);
  DeviceBuffer weights, x, y;
  if (!weights.Allocate(impl->runner().device(), copies * each) ||
      !x.Allocate(impl->runner().device(), num_tokens * shape.groups * w.cols * 4) ||
      !y.Allocate(impl->runner().device(), num_tokens * w.rows * 4)) {
    return ResourceExhausted("no memory for the weights of a measurement");
  }
  const auto copy_at = [&](int64_t i) {
    QuantTensor m = w;
    m.codes = weights.data() + i * each;
    m.block_scale = FileScaleBytes(w) > 0 ? m.codes + code_bytes : nullptr;
    return m;
  };
  const QuantTensor first = copy_at(0);
  uint8_t* const scales = first.block_scale != nullptr ? weights.data() + code_bytes : nullptr;
  FillWeight(ctx, {.w = first, .codes = weights.data(), .block_scale = scales, .seed = 1});
  ParallelFor(ctx.pool, copies - 1, /*grain=*/1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin + 1; i <= end; ++i)
      std::memcpy(weights.data() + i * each, weights.data(), static_cast<size_t>(each));
  });
  auto* inputs = reinterpret_cast<float*>(x.data());
  const int64_t width = shape.groups * w.cols;
  for (int64_t i = 0; i < num_tokens * width; ++i) inputs[i] = FillValue(2, static_cast<uint64_t>(i));
  const Tensor in{x.data(), DType::kF32, {num_tokens, width}}, out{y.data(), DType::kF32, {num_tokens, w.rows}};
  std::vector<double> times;
  const auto start = Clock::now();
  for (int64_t i = 0; i < 3 || SecondsSince(start) < budget; ++i) {
    const auto call = Clock::now();
    Linear(ctx, {.x = in,
                 .parts = {{copy_at(i % copies), out}},
                 .groups = shape.groups,
                 .activation = impl->activation_dtype()});
    if (i > 0) times.push_back(SecondsSince(call));
  }
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  return LinearTime{.rows = w.rows,
                    .seconds = times[times.size() / 2],
                    .bytes = static_cast<double>(FileBytes(w)),
                    .products = static_cast<double>(num_tokens * w.rows * w.cols)};
}

Status AppendCopies(Session& session, std::span<const TokenId> tokens) {
  auto* impl = dynamic_cast<SessionImpl*>(&session);
  auto* engine = impl == nullptr ? nullptr : dynamic_cast<EngineImpl*>(&impl->owner());
  if (engine == nullptr) return InvalidArgument("the session does not belong to an engine of this library");
  DSV4_RETURN_IF_ERROR(CheckTokens(engine->info(), LengthOf(*impl), tokens));
  const KvLayout& layout = engine->runner().model().kv_layout();
  const auto done = static_cast<int64_t>(session.tokens().size());
  const auto whole = static_cast<size_t>(done / layout.page_tokens);
  if (whole == 0) {
    return InvalidArgument(
        StrCat("cached rows are copied in whole pages of ", layout.page_tokens, " tokens; the session has ", done));
  }
  DSV4_RETURN_IF_ERROR(impl->caches().Reserve(done + static_cast<int64_t>(tokens.size())));
  for (int r = 0; r < impl->caches().count(); ++r) {
    Device& device = *impl->memory().devices[static_cast<size_t>(r)];
    const std::vector<uint8_t*>& pages = impl->caches().of(r).pages();
    for (size_t i = whole; i < pages.size(); ++i) device.CopyWithin(pages[i], pages[i % whole], layout.page_bytes);
  }
  impl->ReserveTokens(tokens.size());
  impl->Commit(tokens);
  return {};
}

Status ReplaceDrafts(Engine& engine, KnownDrafts known) {
  auto* impl = dynamic_cast<EngineImpl*>(&engine);
  if (impl == nullptr || impl->drafting().drafter == nullptr)
    return InvalidArgument("the engine makes no drafts; use --speculate lookup, mtp or dspark");
  impl->drafting().Replace(std::move(known), engine.info().vocab_size);
  return {};
}

}  // namespace dsv4
