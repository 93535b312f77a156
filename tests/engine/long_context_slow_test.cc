// The last positions of a context of 1,048,576. The cache is filled as if all earlier positions had been read
// (tools/long_context.py reads them all).

#include <cmath>
#include <cstring>

#include "engine/memory/memory_plan.h"
#include "kv/sequence_cache.h"
#include "model/deepseek_v4/load/bind.h"
#include "model/deepseek_v4/pass/forward.h"
#include "support/fixture.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

using namespace deepseek_v4;

constexpr int64_t kContext = 1048576;
constexpr int64_t kTail = 20;  // ends with the token that completes a row of both compressors
constexpr int64_t kStart = kContext - kTail;
constexpr int64_t kDistinctRows = 499;  // prime: rows a power of two apart differ

// A sequence of kStart tokens with random rows in its window, compressor states and pages.
class LongSequence {
 public:
  explicit LongSequence(const Model& model) : model_(model), memory_(model.kv_layout) {
    auto cache = SequenceCache::Create(memory_);
    EXPECT_TRUE(cache.ok() && (*cache)->Reserve(kContext).ok());
    cache_ = std::move(*cache);
    const SequenceView seq = cache_->View(kStart, 0, kTail);
    for (const LayerLayout& layer : model.kv_layout.layers) {
      FillRows({seq.fixed + layer.window_offset, layer.window_slots, layer.window_row});
      for (const CompressorLayout* c : {&layer.main, &layer.index}) {
        if (c->ratio == 0) continue;
        for (int64_t p = kStart - c->num_slots; p < kStart; ++p) {
          const std::vector<float> state = random_.Normals(2 * c->overlap * c->dim);
          std::memcpy(StateRow(*c, seq, p), state.data(), state.size() * sizeof(float));
        }
        for (int64_t row = 0; row < kContext / c->ratio; row += c->rows_per_page) {
          FillRows(EmittedRow(*c, seq, row).rows);
        }
      }
    }
    fixed_.assign(seq.fixed, seq.fixed + model.kv_layout.fixed_bytes);
  }

  // The logits of the tail's last row, with the tail divided into steps of `chunk` tokens.
  std::vector<float> Run(int64_t chunk, int threads) {
    std::copy(fixed_.begin(), fixed_.end(), cache_->View(kStart, 0, 0).fixed);  // back to the beginning of the tail
    ForgetTail();
    ThreadPool pool(threads);
    const ExecContext ctx{.pool = &pool};
    Activations activations(model_.config, chunk, 1);
    std::vector<float> logits(static_cast<size_t>(model_.config.vocab_size));
    for (int64_t at = kStart; at < kContext; at += chunk) {
      const int64_t t = std::min(chunk, kContext - at);
      Step step;
      for (int64_t i = 0; i < t; ++i) {
        step.tokens.push_back(static_cast<TokenId>((at + i) * 7919 % model_.config.vocab_size));
        step.positions.push_back(at + i);
      }
      step.sequence_of.assign(static_cast<size_t>(t), 0);
      step.sequences = {cache_->View(at, 0, t)};
      step.logit_rows = {static_cast<int32_t>(t - 1)};
      Forward(ctx, model_, HostView(step), activations, {logits.data(), DType::kF32, {1, model_.config.vocab_size}});
    }
    return logits;
  }

  // Row 0 of the HCA layer's compressor: the context's first 128 tokens.
  void ChangeTheBeginning() {
    for (const LayerLayout& layer : model_.kv_layout.layers) {
      if (layer.main.ratio != 128) continue;
      const RowSlot slot = EmittedRow(layer.main, cache_->View(kStart, 0, 0), 0);
      slot.rows.Write(slot.index, random_.Normals(layer.main.dim, 2).data());
    }
  }

  int64_t memory_bytes() const { return cache_->memory_bytes(); }

 private:
  void FillRows(const RowArray& rows) {
    const RowFormat& f = rows.format;
    std::vector<std::vector<uint8_t>>& encoded = f.kind == RowFormat::Kind::kFp4 ? keys_ : rows_;
    while (encoded.size() < kDistinctRows) {
      encoded.emplace_back(static_cast<size_t>(f.row_bytes()));
      EncodeRow(f, random_.Normals(f.dim).data(), encoded.back().data(), encoded.back().data() + f.data_bytes);
    }
    for (int64_t i = 0; i < rows.capacity; ++i) {
      const std::vector<uint8_t>& row = encoded[static_cast<size_t>(filled_++ % kDistinctRows)];
      std::memcpy(rows.data(i), row.data(), static_cast<size_t>(f.data_bytes));
      std::memcpy(rows.scale(i), row.data() + f.data_bytes, static_cast<size_t>(f.scale_bytes));
      if (f.kind != RowFormat::Kind::kFp4) continue;
      for (int64_t byte = 0; byte + 8 <= f.data_bytes; byte += 8) {  // every code is a number: no two keys are equal
        const uint64_t codes = random_.Bits();
        std::memcpy(rows.data(i) + byte, &codes, 8);
      }
    }
  }

  // Poisons the rows that the tail must write: they decode to NaN.
  void ForgetTail() {
    for (const LayerLayout& layer : model_.kv_layout.layers) {
      for (const CompressorLayout* c : {&layer.main, &layer.index}) {
        if (c->ratio == 0) continue;
        for (int64_t row = kStart / c->ratio; row < kContext / c->ratio; ++row) {
          const RowSlot slot = EmittedRow(*c, cache_->View(kStart, 0, 0), row);
          std::memset(slot.rows.data(slot.index), 0xFF, static_cast<size_t>(c->row.data_bytes));
          std::memset(slot.rows.scale(slot.index), 0xFF, static_cast<size_t>(c->row.scale_bytes));
        }
      }
    }
  }

  const Model& model_;
  Random random_{1};
  KvMemory memory_;
  std::unique_ptr<SequenceCache> cache_;
  std::vector<uint8_t> fixed_;
  std::vector<std::vector<uint8_t>> rows_, keys_;
  int64_t filled_ = 0;
};

TEST(LongContext, TheLastPositionsOfAMillion) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  const Config config = LoadConfig(dir).value();
  ASSERT_EQ(config.max_positions, kContext);
  const NumericsModes modes;
  const Model model = MakeModel(config, BindWeights(config, TensorSource::Open(dir).value()).value(), modes);
  LongSequence sequence(model);

  const KvBytes planned = KvFootprint(MakeKvSpec(config, modes));
  EXPECT_NEAR(static_cast<double>(sequence.memory_bytes()),
              planned.per_token * kContext + static_cast<double>(planned.fixed), 64.0 * 2 * 4 * kContext / 256);

  const std::vector<float> logits = sequence.Run(kTail, /*threads=*/2);
  for (const float v : logits) ASSERT_TRUE(std::isfinite(v));
  EXPECT_EQ(sequence.Run(1, /*threads=*/2), logits);
  EXPECT_EQ(sequence.Run(7, /*threads=*/1), logits);
  sequence.ChangeTheBeginning();
  EXPECT_NE(sequence.Run(kTail, /*threads=*/2), logits) << "the first tokens are out of sight";
}

TEST(LongContext, OneTokenMoreIsRefused) {
  DSV4_FIXTURE_OR_SKIP(dir, "flash-nvfp4");
  auto engine = LoadOrFail(ExactOptions(dir));
  ASSERT_NE(engine, nullptr);
  ASSERT_EQ(engine->info().max_context, kContext);
  auto session = std::move(engine->NewSession()).value();
  const std::vector<TokenId> tokens(kContext + 1, 7);
  const Status status = session->Append(tokens, LogitRows::kNone, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("1048577"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  EXPECT_TRUE(session->tokens().empty());
}

}  // namespace
}  // namespace dsv4::test
