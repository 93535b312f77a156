// dsv4/measure.h, and pinned threads.
#include "dsv4/measure.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/cpu_topology.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

EngineOptions Nano(int threads) {
  EngineOptions options;
  options.synthetic.shape = "nano";
  options.num_threads = threads;
  return options;
}

std::vector<float> LastLogits(Engine& engine, Session& session, std::span<const TokenId> tokens) {
  std::vector<float> logits;
  EXPECT_TRUE(session.Append(tokens, LogitRows::kLast, &logits).ok());
  EXPECT_EQ(static_cast<int64_t>(logits.size()), engine.info().vocab_size);
  return logits;
}

TEST(Measure, TracesEveryOpOfAStepAndChangesNoBit) {
  const auto engine = LoadOrFail(Nano(2));
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> ids = SomeTokens(300, 1, engine->info().vocab_size);
  const auto plain = std::move(engine->NewSession()).value(), traced = std::move(engine->NewSession()).value();
  const std::vector<float> expected = LastLogits(*engine, *plain, ids);
  std::vector<float> logits;
  const auto times = TraceOps(*engine, [&] {
    logits = LastLogits(*engine, *traced, ids);
    return Status{};
  });
  ASSERT_TRUE(times.ok());
  EXPECT_EQ(logits, expected);
  for (const char* op :
       {"embed", "hc_pre", "linear", "index_topk", "sparse_attention", "router", "experts", "hc_head"}) {
    const auto has_op = [op](const OpTime& t) { return t.op == op && t.calls > 0 && t.seconds > 0; };
    EXPECT_TRUE(std::any_of(times->begin(), times->end(), has_op)) << op;
  }
  for (const OpTime& t : *times) {
    const bool has_work = t.op == "linear" || t.op == "experts";
    EXPECT_TRUE(!has_work || (t.bytes > 0 && t.products > 0)) << t.detail;
  }
  const auto failed = TraceOps(*engine, [] { return Status(StatusCode::kInternal, "no"); });
  EXPECT_FALSE(failed.ok());
}

TEST(Measure, RatesAndLinears) {
  const auto engine = LoadOrFail(Nano(1));
  ASSERT_NE(engine, nullptr);
  EXPECT_GT(MeasureFmaRate(*engine).value(), 1e8);
  EXPECT_GT(engine->MeasureReadRate().value(), 1e8);
  const auto cpu = DescribeCpu(*engine);
  ASSERT_TRUE(cpu.ok());
  EXPECT_EQ(cpu->num_threads, 1);
  EXPECT_GE(cpu->num_nodes, 1);
  const auto shapes = LinearShapes(*engine);
  ASSERT_TRUE(shapes.ok());
  EXPECT_GE(shapes->size(), 5u);
  for (const char* format : {"NVFP4", "MXFP4", "FP8", "BF16"}) {
    const auto time = MeasureLinear(*engine, format, {.rows = 256, .cols = 512}, /*num_tokens=*/3, /*budget=*/0);
    ASSERT_TRUE(time.ok()) << format;
    EXPECT_GT(time->seconds, 0);
    EXPECT_EQ(time->products, 3.0 * 256 * 512);
  }
  EXPECT_FALSE(MeasureLinear(*engine, "INT4", {.rows = 256, .cols = 512}, 1, 0).ok());
}

TEST(Measure, LinearsTakeTheEnginesInputs) {
  for (const bool integers : {false, true}) {
    EngineOptions options = Nano(1);
    if (integers) options.activation_dtype = ActivationDtype::kInt16;
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    const auto times = TraceOps(
        *engine, [&] { return MeasureLinear(*engine, "NVFP4", {.rows = 256, .cols = 512}, 3, 0).status(); });
    ASSERT_TRUE(times.ok());
    const auto is_linear = [](const OpTime& t) { return t.op == "linear"; };
    const auto linear = std::find_if(times->begin(), times->end(), is_linear);
    ASSERT_NE(linear, times->end());
    EXPECT_EQ(linear->detail, integers ? "NVFP4 256x512 by int16" : "NVFP4 256x512");
  }
}

TEST(Measure, CopiedContextsGoOn) {
  const auto engine = LoadOrFail(Nano(1));
  ASSERT_NE(engine, nullptr);
  const auto session = std::move(engine->NewSession()).value();
  const std::vector<TokenId> ids = SomeTokens(3000, 1, engine->info().vocab_size);
  EXPECT_FALSE(AppendCopies(*session, ids).ok());  // nothing to copy from
  LastLogits(*engine, *session, std::span(ids).first(256));
  ASSERT_TRUE(AppendCopies(*session, std::span(ids).subspan(256)).ok());
  EXPECT_EQ(session->tokens(), ids);
  const std::vector<float> logits = LastLogits(*engine, *session, std::span(ids).first(1));
  EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }));
}

TEST(Pinning, GivesTheSameBitsAndRefusesMoreThreadsThanCores) {
  EngineOptions options = Nano(1);
  const std::vector<float> expected = LogitsOfModel(options);
  options.pinning = Pinning::kOn;
  EXPECT_EQ(LogitsOfModel(options), expected);
  options.num_threads = 0;
  EXPECT_EQ(LogitsOfModel(options), expected);
  EXPECT_EQ(static_cast<int>(UsableCores().size()), NumUsableCores());  // the caller is not pinned any more
  options.num_threads = NumUsableCores() + 1;
  const auto refused = Engine::Load(options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("cannot pin"), std::string::npos) << refused.status().message();
}

}  // namespace
}  // namespace dsv4::test
