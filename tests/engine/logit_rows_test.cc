// Rows of logits: every requested row, computed in groups of the size that the memory plan allows.
#include <memory>
#include <span>
#include <vector>

#include "dsv4/inspect.h"
#include "engine/engine_impl.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

EngineOptions BundledNano() { return {.model_dir = std::string(DSV4_SOURCE_DIR) + "/models/nano", .num_threads = 1}; }

int64_t RoomForRows(Engine& engine) { return dynamic_cast<EngineImpl&>(engine).runner().max_rows(); }

TEST(LogitRows, OfAPassAreMadeInPiecesOfThePlansSize) {
  const auto engine = LoadOrFail(BundledNano());
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> ids = SomeTokens(300, 1, engine->info().vocab_size);
  const std::vector<float> all = AllLogits(*engine, ids);
  EXPECT_EQ(RoomForRows(*engine), kMaxDecodeRows);
  EXPECT_EQ(AllLogits(*engine, ids, 1), all);  // one token at a time
  dynamic_cast<EngineImpl&>(*engine).runner().FailAfter({.passes = 2});
  EXPECT_EQ(AllLogits(*engine, ids), all) << "one pass, however many rows";
}

TEST(LogitRows, OfRanksAreMadeInPieces) {
  EngineOptions options = BundledNano();
  options.device = "cpu*2";
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> ids = SomeTokens(300, 1, engine->info().vocab_size);
  const std::vector<float> all = AllLogits(*engine, ids);
  ASSERT_EQ(all.size(), ids.size() * static_cast<size_t>(engine->info().vocab_size));
  // Rows of every group, as the last of a prompt that ends there. Ranks divide prompts by tokens, single tokens by
  // heads.
  for (const size_t n : {size_t{200}, size_t{257}, ids.size()}) {
    const auto session = std::move(engine->NewSession()).value();
    std::vector<float> last;
    ASSERT_TRUE(session->Append(std::span(ids).first(n), LogitRows::kLast, &last).ok());
    EXPECT_EQ(last, std::vector<float>(all.begin() + static_cast<ptrdiff_t>((n - 1) * last.size()),
                                       all.begin() + static_cast<ptrdiff_t>(n * last.size())))
        << n;
  }
}

TEST(LogitRows, OfSeveralSequencesShareAPass) {
  EngineOptions options = BundledNano();
  const auto engine = LoadOrFail(options);
  ASSERT_NE(engine, nullptr);
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<float>> logits(150);
  std::vector<StepItem> items;
  for (size_t i = 0; i < logits.size(); ++i) {  // more sequences than rows of a pass; two of them request all rows
    prompts.push_back(SomeTokens(i % 100 == 3 ? 90 : 1, i, engine->info().vocab_size));
    sessions.push_back(std::move(engine->NewSession()).value());
  }
  for (size_t i = 0; i < logits.size(); ++i) {
    items.push_back({.session = sessions[i].get(),
                     .tokens = prompts[i],
                     .rows = i % 100 == 3 ? LogitRows::kAll : LogitRows::kLast,
                     .logits = &logits[i]});
  }
  ASSERT_TRUE(engine->Step(items).ok());
  EXPECT_EQ(RoomForRows(*engine), kMaxDecodeRows);
  for (size_t i = 0; i < logits.size(); i += 7 + i % 3) EXPECT_EQ(AllLogits(*engine, prompts[i]), logits[i]) << i;
  EXPECT_EQ(AllLogits(*engine, prompts[103]), logits[103]);
}

TEST(LogitRows, OfDecodeStepsThatOptionsMakeLargerAreInThePlan) {
  EngineOptions options = BundledNano();
  const MemoryPlan usual = std::move(Inspect(options)).value().plan;
  options.max_decode_rows = 512;
  const MemoryPlan larger = std::move(Inspect(options)).value().plan;
  EXPECT_GE(larger.activation_bytes - usual.activation_bytes, (512 - kMaxDecodeRows) * 4096 * 4);
}

}  // namespace
}  // namespace dsv4::test
