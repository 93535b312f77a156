// With default flags a row's bits depend only on its own request (docs/dev/decisions/0008-regimes.md): ops in each
// regime, and the engine.
#include "engine/setup/regimes.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "support/cache_fixture.h"
#include "support/compare.h"
#include "support/cuda_mirror.h"
#include "support/guard_buffer.h"
#include "support/quant_fixture.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

constexpr Regime kRegimes[] = {Regime::kDecode, Regime::kPrompt, Regime::kLongPrompt};
constexpr int64_t kTokens[] = {1, 3, 17, 64, 65, 128, 129, 200, 1100};
constexpr int64_t kMost = 4096;

const char* NameOfRegime(Regime r) {
  return r == Regime::kDecode ? "decode" : r == Regime::kPrompt ? "prompt" : "long prompt";
}

// ---- ops ----

// `run(regime, tokens)` returns the op's output for the first `tokens` tokens, rows of `width`.
template <typename Run>
void ExpectRowsOfAnyNumber(const std::string& what, int64_t width, int64_t most, const Run& run) {
  for (const Regime regime : kRegimes) {
    const std::vector<float> all = run(regime, most);
    for (const int64_t tokens : kTokens) {
      if (tokens >= most) break;
      EXPECT_TRUE(BitEqual(run(regime, tokens), std::span(all).first(static_cast<size_t>(tokens * width))))
          << what << ", " << NameOfRegime(regime) << ", T " << tokens;
    }
  }
}

TEST(CudaRegimes, LinearRowsDoNotDependOnTheirNumber) {
  DSV4_GPU_OR_SKIP();
  Random random(1);
  for (const QuantCase& kind : AllQuantCases()) {
    for (const auto& [n, k, groups] : {std::tuple{int64_t{300}, int64_t{512}, int64_t{1}}, {192, 192, 3}}) {
      const QuantFixture w(random, kind, n, k, {.unaligned = false});
      GuardBuffer<float> x({kMost, groups * k}, random.Normals(kMost * groups * k));
      ExpectRowsOfAnyNumber(StrCat(kind.name(), " in ", groups, " groups"), n, kMost,
                            [&, n = n, groups = groups](Regime regime, int64_t tokens) {
                              GuardBuffer<float> y({tokens, n});
                              Mirror gpu;
                              gpu.ctx().regime = regime;
                              Linear(gpu.ctx(), {.x = gpu.In(x.tensor().Head(tokens)),
                                                 .parts = {{gpu.Weight(w.tensor()), gpu.Out(y.tensor())}},
                                                 .groups = groups});
                              gpu.Finish();
                              return y.values();
                            });
    }
  }
}

TEST(CudaRegimes, RowsOfLinearPartsTogetherDoNotDependOnTheirNumber) {
  DSV4_GPU_OR_SKIP();
  Random random(2);
  const QuantCase kinds[] = {
      {WeightFormat::kNvfp4}, {WeightFormat::kFp8Block, DType::kF32}, {WeightFormat::kBf16}, {WeightFormat::kNvfp4}};
  const int64_t rows[] = {200, 48, 33, 64}, k = 256, all_rows = std::accumulate(rows, rows + 4, int64_t{0});
  std::vector<QuantFixture> w;
  for (size_t i = 0; i < 4; ++i) w.emplace_back(random, kinds[i], rows[i], k, QuantOptions{.unaligned = false});
  GuardBuffer<float> x({kMost, k}, random.Normals(kMost * k));
  ExpectRowsOfAnyNumber("linear of several parts", all_rows, kMost, [&](Regime regime, int64_t tokens) {
    std::vector<std::unique_ptr<GuardBuffer<float>>> y;
    Mirror gpu;
    gpu.ctx().regime = regime;
    LinearArgs a{.x = gpu.In(x.tensor().Head(tokens))};
    for (size_t i = 0; i < 4; ++i) {
      y.push_back(std::make_unique<GuardBuffer<float>>(Shape{tokens, rows[i]}));
      a.parts.Add({.w = gpu.Weight(w[i].tensor()), .y = gpu.Out(y[i]->tensor())});
    }
    Linear(gpu.ctx(), a);
    gpu.Finish();
    std::vector<float> out;
    for (int64_t t = 0; t < tokens; ++t) {
      for (const auto& part : y) out.insert(out.end(), part->row(t).begin(), part->row(t).end());
    }
    return out;
  });
}

// With few pairs per expert and with many.
TEST(CudaRegimes, RowsOfExpertsDoNotDependOnTheirNumber) {
  DSV4_GPU_OR_SKIP();
  Random random(3);
  const int64_t d = 192, f = 96, num_experts = 40, slots = 6;
  for (const QuantCase& kind : AllQuantCases()) {
    const int64_t most = kind.format == WeightFormat::kNvfp4 ? kMost : 1100;
    std::vector<QuantFixture> gate, up, down;
    for (int64_t e = 0; e < num_experts; ++e) {
      gate.emplace_back(random, kind, f, d, QuantOptions{.unaligned = false});
      up.emplace_back(random, kind, f, d, QuantOptions{.unaligned = false});
      down.emplace_back(random, kind, d, f, QuantOptions{.unaligned = false});
    }
    GuardBuffer<float> x({most, d}, random.Normals(most * d)),
        weights({most, slots}, random.Uniforms(most * slots, 0, 1)), shared({most, d}, random.Normals(most * d));
    GuardBuffer<int32_t> ids({most, slots});
    for (int64_t t = 0; t < most; ++t) std::copy_n(random.Permutation(num_experts).begin(), slots, ids.row(t).begin());
    ExpectRowsOfAnyNumber(kind.name(), d, most, [&](Regime regime, int64_t tokens) {
      GuardBuffer<float> y({tokens, d});
      Mirror gpu;
      gpu.ctx().regime = regime;
      std::vector<ExpertMatrices> matrices;
      for (size_t e = 0; e < gate.size(); ++e) {
        matrices.push_back({gpu.Weight(gate[e].tensor()), gpu.Weight(up[e].tensor()), gpu.Weight(down[e].tensor())});
      }
      Experts(gpu.ctx(), {.x = gpu.In(x.tensor().Head(tokens)),
                          .experts = gpu.In(ids.tensor().Head(tokens)),
                          .weights = gpu.In(weights.tensor().Head(tokens)),
                          .matrices = {gpu.Array(matrices), matrices.size()},
                          .first = matrices[0],
                          .limit = 3,
                          .hidden = gpu.Temp({tokens * slots, 2 * f}),
                          .outputs = gpu.Temp({tokens * slots, d}),
                          .rounded_x = gpu.Temp({tokens, d}),
                          .shared = gpu.In(shared.tensor().Head(tokens)),
                          .y = gpu.Out(y.tensor())});
      gpu.Finish();
      return y.values();
    });
  }
}

// The first tokens of a sequence that continues, alone and after another sequence.
TEST(CudaRegimes, RowsOfAttentionDoNotDependOnTheirNumber) {
  DSV4_GPU_OR_SKIP();
  Random random(4);
  for (const KvDtype dtype : {KvDtype::kFp8, KvDtype::kBf16}) {
    for (const int64_t ratio : {0, 4, 128}) {
      for (const int64_t heads : {64, 128}) {
        const int64_t most = 210, dh = 512, picks = ratio == 4 ? 100 : 0, width = heads * dh, cached = 900;
        const std::vector<SequenceStep> sequences = {{cached, most}};
        CacheFixture cache(FullKvSpec({ratio}, dtype), sequences);
        cache.FillRandom(random);
        GuardBuffer<float> q({most, heads, dh}, random.Normals(most * width)),
            kv({most, dh}, random.Normals(most * dh)), sink({heads}, random.Normals(heads, 3));
        for (int64_t t = 0; t < most; ++t) RoundRow(cache.layout().layers[0].window_row, kv.row(t).data());
        GuardBuffer<int32_t> chosen({most, std::max<int64_t>(picks, 1)});
        for (int64_t t = 0; t < most && picks > 0; ++t) {
          std::vector<int32_t> rows = random.Permutation((cached + t + 1) / ratio);
          rows.resize(static_cast<size_t>(picks));
          std::sort(rows.begin(), rows.end());
          std::copy(rows.begin(), rows.end(), chosen.row(t).begin());
        }
        ExpectRowsOfAnyNumber(
            StrCat("ratio ", ratio, ", ", heads, " heads"), width, most, [&](Regime regime, int64_t tokens) {
              SequenceView sequence = cache.sequences()[0];
              sequence.end = tokens;
              CacheView view = cache.View(0);
              view.sequences = &sequence;
              view.num_tokens = tokens;
              GuardBuffer<float> out({tokens, heads, dh});
              Mirror gpu;
              gpu.ctx().regime = regime;
              SparseAttention(gpu.ctx(), {.q = gpu.In(q.tensor().Head(tokens)),
                                          .kv = gpu.In(kv.tensor().Head(tokens)),
                                          .sink = gpu.In(sink.tensor()),
                                          .topk_idxs = picks > 0 ? gpu.In(chosen.tensor().Head(tokens)) : Tensor{},
                                          .cache = gpu.Cache(view),
                                          .out = gpu.Out(out.tensor())});
              gpu.Finish();
              return out.values();
            });
      }
    }
  }
}

// ---- the engine ----

// Two prompts of each kind, and tokens after each. Layers of the released shape, because the fixtures' layers have few
// heads.
struct Requests {
  explicit Requests(int64_t vocab) {
    const int64_t lengths[] = {40, 128, 129, 521, 1024, 1300, 2100};
    for (size_t i = 0; i < std::size(lengths); ++i) prompts.push_back(SomeTokens(lengths[i], 11 + i, vocab));
  }
  static constexpr size_t kSteps = 6;
  std::vector<std::vector<TokenId>> prompts;
  TokenId Next(size_t request, size_t step) const { return prompts[request][7 * step % prompts[request].size()]; }
};

std::unique_ptr<Session> NewSession(Engine& engine) { return std::move(engine.NewSession()).value(); }

// The logits of the prompt's last row and of decode steps after it.
std::vector<float> Alone(Engine& engine, const Requests& r, size_t request) {
  const auto session = NewSession(engine);
  std::vector<float> all, row;
  EXPECT_TRUE(session->Append(r.prompts[request], LogitRows::kLast, &row).ok());
  for (size_t step = 0;; ++step) {
    all.insert(all.end(), row.begin(), row.end());
    if (step == Requests::kSteps) return all;
    const TokenId next = r.Next(request, step);
    EXPECT_TRUE(session->Append({&next, 1}, LogitRows::kLast, &row).ok());
  }
}

EngineOptions FourLayers(int64_t chunk = 0) {
  EngineOptions options;
  options.synthetic = {.shape = "flash", .num_layers = 4};
  options.device = "cuda";
  options.prefill_chunk = chunk;
  return options;
}

class CudaRegimesEngine : public testing::Test {
 protected:
  void SetUp() override {
    DSV4_GPU_OR_SKIP();
    engine_ = LoadOrFail(FourLayers());
    ASSERT_NE(engine_, nullptr);
    requests_.emplace(engine_->info().vocab_size);
    for (size_t i = 0; i < requests_->prompts.size(); ++i) alone_.push_back(Alone(*engine_, *requests_, i));
  }
  std::unique_ptr<Engine> engine_;
  std::optional<Requests> requests_;
  std::vector<std::vector<float>> alone_;
};

TEST_F(CudaRegimesEngine, ChunksOfAnySize) {
  for (const int64_t chunk : {1, 37, 512, 4096, 8192}) {
    engine_.reset();  // room for the next one
    engine_ = LoadOrFail(FourLayers(chunk));
    ASSERT_NE(engine_, nullptr);
    for (size_t i = 0; i < requests_->prompts.size(); ++i) {
      if (chunk == 1 && requests_->prompts[i].size() > 600) continue;
      EXPECT_EQ(Alone(*engine_, *requests_, i), alone_[i])
          << "chunks of " << chunk << ", prompt of " << requests_->prompts[i].size();
    }
  }
}

// A server's steps: chunks of prompts, with lengths that depend on the other requests, together with decode rows.
TEST_F(CudaRegimesEngine, AmongOthersInPiecesOfAnySize) {
  const Requests& r = *requests_;
  for (const size_t others : {size_t{0}, size_t{31}, size_t{63}, size_t{127}}) {
    SCOPED_TRACE(StrCat(others, " others"));
    std::vector<std::unique_ptr<Session>> streams, sessions;
    for (size_t i = 0; i < others; ++i) {
      streams.push_back(NewSession(*engine_));
      ASSERT_TRUE(
          streams.back()->Append(std::span(r.prompts[3]).subspan(i, 3 + 2 * i), LogitRows::kNone, nullptr).ok());
    }
    for (size_t i = 0; i < r.prompts.size(); ++i) sessions.push_back(NewSession(*engine_));
    std::vector<size_t> decoded(sessions.size());
    std::vector<std::vector<float>> got(sessions.size());
    for (size_t round = 0; std::any_of(decoded.begin(), decoded.end(), [](size_t n) { return n < Requests::kSteps; });
         ++round) {
      std::vector<StepItem> items;
      std::vector<TokenId> next(sessions.size() + others);
      std::vector<std::vector<float>> row(sessions.size() + others);
      for (size_t i = 0; i < sessions.size(); ++i) {
        const std::vector<TokenId>& prompt = r.prompts[i];
        const size_t read = sessions[i]->tokens().size();
        if (read < prompt.size()) {
          const size_t piece = std::min(prompt.size() - read, std::array{size_t{1}, size_t{37}, size_t{200},
                                                                         size_t{512}, size_t{90}}[(round + i) % 5]);
          const bool last = read + piece == prompt.size();
          items.push_back({.session = sessions[i].get(),
                           .tokens = std::span(prompt).subspan(read, piece),
                           .rows = last ? LogitRows::kLast : LogitRows::kNone,
                           .logits = last ? &row[i] : nullptr,
                           .prompt_tokens = static_cast<int64_t>(prompt.size())});
        } else if (decoded[i] < Requests::kSteps) {
          next[i] = r.Next(i, decoded[i]++);
          items.push_back({.session = sessions[i].get(), .tokens = {&next[i], 1}, .logits = &row[i]});
        }
      }
      for (size_t i = 0; i < others; ++i) {
        next[sessions.size() + i] = r.prompts[2][(i + round) % r.prompts[2].size()];
        items.push_back({.session = streams[i].get(),
                         .tokens = {&next[sessions.size() + i], 1},
                         .logits = &row[sessions.size() + i]});
      }
      ASSERT_TRUE(engine_->Step(items).ok());
      for (size_t i = 0; i < sessions.size(); ++i) got[i].insert(got[i].end(), row[i].begin(), row[i].end());
    }
    for (size_t i = 0; i < sessions.size(); ++i) EXPECT_EQ(got[i], alone_[i]) << "prompt of " << r.prompts[i].size();
  }
}

// The written tokens are appended again as decode rows, many at a time.
TEST_F(CudaRegimesEngine, StartingOver) {
  const Requests& r = *requests_;
  for (size_t i = 0; i < r.prompts.size(); ++i) {
    const auto session = NewSession(*engine_);
    std::vector<float> row, rows;
    ASSERT_TRUE(session->Append(r.prompts[i], LogitRows::kLast, &row).ok());
    std::vector<TokenId> written;
    for (size_t step = 0; step < Requests::kSteps; ++step) written.push_back(r.Next(i, step));
    const StepItem again{.session = session.get(), .tokens = written, .rows = LogitRows::kAll, .logits = &rows};
    ASSERT_TRUE(engine_->Step({&again, 1}).ok());
    row.insert(row.end(), rows.begin(), rows.end());
    EXPECT_EQ(row, alone_[i]) << "prompt of " << r.prompts[i].size();
  }
}

// More sequences than kMaxDecodeRows, without permission for one pass: several passes, the same bits.
TEST_F(CudaRegimesEngine, MoreDecodeRowsThanAPassHas) {
  const Requests& r = *requests_;
  constexpr size_t kSequences = kMaxDecodeRows + 20;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<float>> got(kSequences);
  for (size_t i = 0; i < kSequences; ++i) {
    sessions.push_back(NewSession(*engine_));
    ASSERT_TRUE(sessions[i]->Append(r.prompts[i % 4], LogitRows::kLast, &got[i]).ok());
  }
  for (size_t step = 0; step < Requests::kSteps; ++step) {
    std::vector<StepItem> items;
    std::vector<TokenId> next(kSequences);
    std::vector<std::vector<float>> row(kSequences);
    for (size_t i = 0; i < kSequences; ++i) {
      next[i] = r.Next(i % 4, step);
      items.push_back({.session = sessions[i].get(), .tokens = {&next[i], 1}, .logits = &row[i]});
    }
    ASSERT_TRUE(engine_->Step(items).ok());
    for (size_t i = 0; i < kSequences; ++i) got[i].insert(got[i].end(), row[i].begin(), row[i].end());
  }
  for (size_t i = 0; i < kSequences; ++i) ASSERT_EQ(got[i], alone_[i % 4]) << i;
}

}  // namespace
}  // namespace dsv4::test
