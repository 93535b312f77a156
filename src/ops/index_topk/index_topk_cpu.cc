#include "ops/index_topk/index_topk.h"

#include <vector>

#include "ops/cache_row.h"
#include "ops/index_topk/select.h"
#include "ops/linear/rows/multiply_rows.h"

namespace dsv4::DSV4_ISA {

namespace {

constexpr int64_t kKeyTile = 32;  // keys decoded at a time: 16 KiB at 128 channels

// Working memory of one thread.
struct TopkScratch {
  std::vector<float> keys;   // [kKeyTile, Dp]
  std::vector<float> q;      // [Ni, Dp] of one token, only if Di is not whole vectors
  std::vector<float> score;  // [kIndexTokensAtOnce, visible rows]
  std::vector<int32_t> order;
};

TopkScratch& ThreadTopkScratch() {
  static thread_local TopkScratch scratch;
  return scratch;
}

int64_t Visible(const IndexTopkArgs& a, int64_t t) { return (a.cache.positions[t] + 1) / a.cache.layer->index.ratio; }

// score[w - first] of token t for `count` decoded keys, heads in order.
void ScoreKeys(const IndexTopkArgs& a, int64_t t, const float* keys, int64_t count, int64_t dp, TopkScratch& s,
               float* score) {
  const int64_t num_heads = a.q.dim(1), di = a.q.dim(2);
  const float* q = a.q.f32() + t * num_heads * di;
  if (dp != di) {
    s.q.assign(static_cast<size_t>(num_heads * dp), 0.0f);
    for (int64_t h = 0; h < num_heads; ++h) std::copy_n(q + h * di, di, s.q.data() + h * dp);
    q = s.q.data();
  }
  const float* weights = a.weights.f32() + t * num_heads;
  for (int64_t i = 0; i < count; i += kLanes) {
    Vec sum = Zero();
    for (int64_t h = 0; h < num_heads; h += kTileTokens) {
      float dots[kTileTokens][kLanes];
      const float* x[kTileTokens];
      for (int64_t j = 0; j < kTileTokens; ++j) x[j] = q + std::min(h + j, num_heads - 1) * dp;
      for (int64_t part = 0; part < kLanes; part += kTileRows) {
        const auto key = [&](int64_t r) { return BufferRow{keys + std::min(i + part + r, count - 1) * dp}; };
        const BufferRow tile[kTileRows] = {key(0), key(1), key(2), key(3)};
        Vec acc[kTileRows][kTileTokens];
        for (auto& of_key : acc) {
          for (Vec& v : of_key) v = Zero();
        }
        AddProducts<kTileRows, kTileTokens>(tile, x, 0, dp, acc);
        for (int64_t j = 0; j < kTileTokens; ++j) {
          StoreSums(dots[j] + part, acc[0][j], acc[1][j], acc[2][j], acc[3][j]);
        }
      }
      for (int64_t j = 0; j < std::min(kTileTokens, num_heads - h); ++j) {
        sum = Fma(Set(weights[h + j]), Max(Zero(), Load(dots[j])), sum);
      }
    }
    if (i + kLanes <= count) {
      Store(score + i, sum);
    } else {
      StorePartial(score + i, sum, count - i);
    }
  }
}

// Scores of tokens [token_begin, token_end), all of one sequence, for rows [row_begin, row_end). Token t's scores are
// at scores + (t - token_begin) * stride. Rows that a token does not see are skipped.
void ScoreRows(const IndexTopkArgs& a, int64_t token_begin, int64_t token_end, int64_t row_begin, int64_t row_end,
               TopkScratch& s, float* scores, int64_t stride) {
  const int64_t di = a.q.dim(2), dp = PadToLanes(di);
  const SequenceView& seq = a.cache.sequence(token_begin);
  s.keys.resize(std::max(s.keys.size(), static_cast<size_t>(kKeyTile * dp)));
  for (int64_t first = row_begin; first < row_end; first += kKeyTile) {
    const int64_t count = std::min(kKeyTile, row_end - first);
    for (int64_t i = 0; i < count; ++i) {
      float* key = s.keys.data() + i * dp;
      DecodeSlot(EmittedRow(a.cache.layer->index, seq, first + i), key);
      std::fill(key + di, key + dp, 0.0f);
    }
    for (int64_t t = token_begin; t < token_end; ++t) {
      const int64_t seen = std::min(count, Visible(a, t) - first);
      if (seen > 0) ScoreKeys(a, t, s.keys.data(), seen, dp, s, scores + (t - token_begin) * stride + first);
    }
  }
}

// Selects for tokens [begin, end), in blocks of one sequence; each block decodes its keys once.
void SelectForTokens(const IndexTopkArgs& a, int64_t begin, int64_t end, TopkScratch& s) {
  const int64_t k = a.topk_idxs.dim(1);
  while (begin < end) {
    int64_t last = begin + 1;
    while (last < std::min(end, begin + kIndexTokensAtOnce) && a.cache.sequence_of[last] == a.cache.sequence_of[begin])
      ++last;
    const int64_t stride = Visible(a, last - 1);
    s.score.resize(std::max(s.score.size(), static_cast<size_t>((last - begin) * stride)));
    int64_t scored = begin;  // tokens that see at most K rows select all of them
    while (scored < last && Visible(a, scored) <= k) ++scored;
    if (scored < last) {
      ScoreRows(a, scored, last, 0, stride, s, s.score.data() + (scored - begin) * stride, stride);
    }
    for (int64_t t = begin; t < last; ++t) {
      SelectTopk(s.score.data() + (t - begin) * stride, Visible(a, t), k, s.order, a.topk_idxs.i32() + t * k);
    }
    begin = last;
  }
}

}  // namespace

void IndexTopkCpu(const ExecContext& ctx, const IndexTopkArgs& a) {
  const int64_t num_tokens = a.cache.num_tokens, k = a.topk_idxs.dim(1);
  const int64_t threads = ctx.pool == nullptr ? 1 : ctx.pool->num_threads();
  if (num_tokens >= 2 * threads) {
    ParallelFor(ctx.pool, num_tokens, /*grain=*/1,
                [&](int64_t begin, int64_t end, int) { SelectForTokens(a, begin, end, ThreadTopkScratch()); });
    return;
  }
  TopkScratch& own = ThreadTopkScratch();
  for (int64_t t = 0; t < num_tokens; ++t) {  // few tokens: the threads share a token's keys
    const int64_t visible = Visible(a, t);
    own.score.resize(std::max(own.score.size(), static_cast<size_t>(visible)));
    float* score = own.score.data();
    if (visible > k) {
      ParallelFor(ctx.pool, CeilDiv(visible, kKeyTile), /*grain=*/2, [&](int64_t begin, int64_t end, int) {
        ScoreRows(a, t, t + 1, begin * kKeyTile, std::min(visible, end * kKeyTile), ThreadTopkScratch(), score,
                  visible);
      });
    }
    SelectTopk(score, visible, k, own.order, a.topk_idxs.i32() + t * k);
  }
}

}  // namespace dsv4::DSV4_ISA
