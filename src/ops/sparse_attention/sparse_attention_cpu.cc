#include <cmath>
#include <limits>
#include <vector>

#include "ops/cache_row.h"
#include "ops/grain.h"
#include "ops/linear/rows/multiply_rows.h"
#include "ops/sparse_attention/rows.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace dsv4::DSV4_ISA {

namespace {

// Rows per step of the online softmax, counted from the start of the token's list. Part of the summation order.
constexpr int64_t kTile = 32;
constexpr int64_t kHeadTile = 4;  // heads that share the loads of a row's channels
// rows that stay in the first cache level while all heads' scores are computed: 16 KiB
constexpr int64_t kRowTile = 8;
constexpr int64_t kChannelTile = 128;  // channels of kTile rows that stay in it while all heads add them: 16 KiB
constexpr int64_t kHeadGroup = 4;      // fewest heads of a thread
constexpr int64_t kMinTokensToShare = 4;

// Cached rows that several tokens of the step attend to, decoded once: per sequence the ring, then the compressed rows.
class SharedRows {
 public:
  void Decode(const ExecContext& ctx, const SparseAttentionArgs& a, int64_t stride) {
    const CacheView& cache = a.cache;
    const int64_t slots = cache.layer->window_slots;
    first_.assign(static_cast<size_t>(cache.num_sequences), -1);
    jobs_.clear();
    int64_t total = 0;
    for (int64_t s = 0; s < cache.num_sequences; ++s) {
      const SequenceView& seq = cache.sequences[s];
      const int64_t tokens = seq.end - seq.begin;
      const int64_t ratio = cache.layer->main.ratio;
      const int64_t visible = ratio == 0 ? 0 : (seq.start + tokens) / ratio;
      const bool sparse = a.topk_idxs && visible > tokens * a.topk_idxs.dim(1);
      if (tokens < kMinTokensToShare || sparse || total + slots + visible > kMaxSharedRows) continue;
      first_[static_cast<size_t>(s)] = total;
      for (int64_t p = std::max<int64_t>(0, seq.start - cache.window + 1); p < seq.start; ++p) {
        jobs_.push_back({{cache.window_rows(seq), p % slots}, total + p % slots});
      }
      for (int64_t w = 0; w < visible; ++w) {
        jobs_.push_back({EmittedRow(cache.layer->main, seq, w), total + slots + w});
      }
      total += slots + visible;
    }
    slots_ = slots;
    stride_ = stride;
    if (jobs_.empty()) return;
    rows_.resize(std::max(rows_.size(), static_cast<size_t>(total * stride)));
    const int64_t dim = a.q.dim(2);
    ParallelFor(ctx.pool, static_cast<int64_t>(jobs_.size()), /*grain=*/64, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const Job& job = jobs_[static_cast<size_t>(i)];
        float* row = rows_.data() + job.to * stride;
        DecodeSlot(job.from, row);
        std::fill(row + dim, row + stride, 0.0f);
      }
    });
  }

  // Null if the sequence's rows were not decoded.
  const float* Find(int64_t sequence, const AttendedRows::Place& place) const {
    const int64_t first = first_[static_cast<size_t>(sequence)];
    if (first < 0) return nullptr;
    return rows_.data() + (first + (place.ring_slot >= 0 ? place.ring_slot : slots_ + place.compressed)) * stride_;
  }

 private:
  struct Job {
    RowSlot from;
    int64_t to;
  };
  std::vector<int64_t> first_;  // by sequence; -1: none
  std::vector<Job> jobs_;
  std::vector<float> rows_;
  int64_t slots_ = 0, stride_ = 0;
};

// Working memory of one thread.
struct AttentionScratch {
  std::vector<float> rows;                 // [kTile, Dp]: decoded rows; Dp = Dh padded to whole vectors
  std::vector<float> q;                    // [heads, Dp], only if Dh is not whole vectors
  std::vector<float> out;                  // [heads, Dp]: sums of the weighted rows
  std::vector<float> score;                // [heads, kTile]
  std::vector<float> largest, sum, decay;  // [heads]
};

// score[h][i] = q[h] . rows[i] for rows [begin, end).
void ScoresOfRows(const float* q, int64_t num_heads, const float* const* rows, int64_t begin, int64_t end,
                  int64_t count, int64_t dp, float* score) {
  for (int64_t h = 0; h < num_heads; h += kTileTokens) {
    const int64_t heads = std::min(kTileTokens, num_heads - h);
    const float* x[kTileTokens];
    for (int64_t j = 0; j < kTileTokens; ++j) x[j] = q + std::min(h + j, num_heads - 1) * dp;
    for (int64_t i = begin; i < end; i += kTileRows) {
      const auto row = [&](int64_t r) { return BufferRow{rows[std::min(i + r, count - 1)]}; };
      const BufferRow tile[kTileRows] = {row(0), row(1), row(2), row(3)};
      const auto products = [&]<int T>(std::integral_constant<int, T>) {
        Vec acc[kTileRows][T];
        for (auto& of_row : acc) {
          for (Vec& v : of_row) v = Zero();
        }
        AddProducts<kTileRows, T>(tile, x, 0, dp, acc);
        for (int j = 0; j < T; ++j) {
          StoreSums(score + (h + j) * kTile + i, acc[0][j], acc[1][j], acc[2][j], acc[3][j]);
        }
      };
      if (heads == 3) {
        products(std::integral_constant<int, 3>());
      } else if (heads == 2) {
        products(std::integral_constant<int, 2>());
      } else {
        products(std::integral_constant<int, 1>());
      }
    }
  }
}

// The same for all rows.
void Scores(const float* q, int64_t num_heads, const float* const* rows, int64_t count, int64_t dp, float* score) {
  for (int64_t i = 0; i < count; i += kRowTile)
    ScoresOfRows(q, num_heads, rows, i, std::min(count, i + kRowTile), count, dp, score);
}

// Replaces a head's scores by exp(scale * score - largest) and updates the running maximum and sum. Returns the factor
// for the earlier sums.
float SoftmaxStep(float* score, int64_t count, float scale, float& largest, float& sum) {
  for (int64_t i = count; i < kTile; ++i) score[i] = -std::numeric_limits<float>::infinity();
  Vec s[kTile / kLanes];
  Vec top = Set(largest);
  for (int64_t i = 0; i < kTile / kLanes; ++i) {
    s[i] = Mul(Load(score + i * kLanes), Set(scale));
    top = Max(s[i], top);
  }
  float lanes[kLanes];
  Store(lanes, top);
  float now = lanes[0];
  for (int64_t i = 1; i < kLanes; ++i) now = std::max(now, lanes[i]);
  float decay[kLanes];
  Store(decay, Exp(Set(largest - now)));
  Vec total = Zero();
  for (int64_t i = 0; i < kTile / kLanes; ++i) {
    const Vec p = Exp(Sub(s[i], Set(now)));
    Store(score + i * kLanes, p);
    total = Add(total, p);
  }
  sum = sum * decay[0] + Sum(total);
  largest = now;
  return decay[0];
}

// out[h] = out[h] * decay[h] + sum_i p[h][i] * rows[i], rows in order, for H heads and C vectors of channels.
template <int H, int C>
DSV4_INLINE void AddRows(const float* p, const float* decay, const float* const* rows, int64_t count, int64_t c,
                         float* out, int64_t dp) {
  Vec acc[H][C];
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < C; ++v) acc[h][v] = Mul(Load(out + h * dp + c + v * kLanes), Set(decay[h]));
  }
  for (int64_t i = 0; i < count; ++i) {
    Vec row[C];
    for (int v = 0; v < C; ++v) row[v] = Load(rows[i] + c + v * kLanes);
    for (int h = 0; h < H; ++h) {
      const Vec weight = Set(p[h * kTile + i]);
      for (int v = 0; v < C; ++v) acc[h][v] = Fma(weight, row[v], acc[h][v]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int v = 0; v < C; ++v) Store(out + h * dp + c + v * kLanes, acc[h][v]);
  }
}

template <int H>
void AddRowsOfHeads(const float* p, const float* decay, const float* const* rows, int64_t count, int64_t begin,
                    int64_t end, float* out, int64_t dp) {
  int64_t c = begin;
  for (; c + 2 * kLanes <= end; c += 2 * kLanes) AddRows<H, 2>(p, decay, rows, count, c, out, dp);
  if (c < end) AddRows<H, 1>(p, decay, rows, count, c, out, dp);
}

// Channels [begin, end) of all heads.
void AddChannels(const float* score, const float* decay, const float* const* rows, int64_t count, int64_t begin,
                 int64_t end, int64_t heads, float* sums, int64_t dp) {
  for (int64_t h = 0; h < heads; h += kHeadTile) {
    const float *p = score + h * kTile, *d = decay + h;
    float* out = sums + h * dp;
    switch (std::min(kHeadTile, heads - h)) {
      case 4:
        AddRowsOfHeads<4>(p, d, rows, count, begin, end, out, dp);
        break;
      case 3:
        AddRowsOfHeads<3>(p, d, rows, count, begin, end, out, dp);
        break;
      case 2:
        AddRowsOfHeads<2>(p, d, rows, count, begin, end, out, dp);
        break;
      default:
        AddRowsOfHeads<1>(p, d, rows, count, begin, end, out, dp);
        break;
    }
  }
}

// Heads [head_begin, head_end) of token t.
void Attend(const SparseAttentionArgs& a, const SharedRows& shared, int64_t t, int64_t head_begin, int64_t head_end,
            AttentionScratch& s) {
  const int64_t num_heads = a.q.dim(1), dh = a.q.dim(2), dp = PadToLanes(dh), heads = head_end - head_begin;
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dh)));
  s.rows.resize(std::max(s.rows.size(), static_cast<size_t>(kTile * dp)));
  s.score.resize(std::max(s.score.size(), static_cast<size_t>(heads * kTile)));
  s.out.assign(static_cast<size_t>(heads * dp), 0.0f);
  const float* sink = a.sink.f32() + head_begin;
  s.largest.assign(sink, sink + heads);
  s.sum.assign(static_cast<size_t>(heads), 1.0f);
  s.decay.resize(static_cast<size_t>(heads));
  const float* q = a.q.f32() + (t * num_heads + head_begin) * dh;
  if (dp != dh) {
    s.q.assign(static_cast<size_t>(heads * dp), 0.0f);
    for (int64_t h = 0; h < heads; ++h) std::copy_n(q + h * dh, dh, s.q.data() + h * dp);
    q = s.q.data();
  }

  const AttendedRows attended(a, t);
  const int64_t sequence = a.cache.sequence_of[t];
  for (int64_t first = 0; first < attended.size(); first += kTile) {
    const int64_t count = std::min(kTile, attended.size() - first);
    const float* rows[kTile];
    for (int64_t i = 0; i < count; ++i) {
      const AttendedRows::Place place = attended.Locate(first + i);
      float* buffer = s.rows.data() + i * dp;
      if (place.own != nullptr && dp == dh) {
        rows[i] = place.own;
        continue;
      }
      rows[i] = place.own == nullptr ? shared.Find(sequence, place) : nullptr;
      if (rows[i] != nullptr) continue;
      if (place.own != nullptr) {
        std::copy_n(place.own, dh, buffer);
      } else {
        DecodeSlot(attended.Slot(place), buffer);
      }
      std::fill(buffer + dh, buffer + dp, 0.0f);
      rows[i] = buffer;
    }
    Scores(q, heads, rows, count, dp, s.score.data());
    for (int64_t h = 0; h < heads; ++h) {
      const size_t i = static_cast<size_t>(h);
      s.decay[i] = SoftmaxStep(s.score.data() + h * kTile, count, scale, s.largest[i], s.sum[i]);
    }
    for (int64_t c = 0; c < dp; c += kChannelTile) {
      AddChannels(s.score.data(), s.decay.data(), rows, count, c, std::min(dp, c + kChannelTile), heads, s.out.data(),
                  dp);
    }
  }

  float* out = a.out.f32() + (t * num_heads + head_begin) * dh;
  for (int64_t h = 0; h < heads; ++h) {
    const float sum = s.sum[static_cast<size_t>(h)];
    for (int64_t c = 0; c < dh; ++c) out[h * dh + c] = s.out[static_cast<size_t>(h * dp + c)] / sum;
  }
}

}  // namespace

// The work is divided by (token, group of heads). A thread gets whole tokens if possible, and decodes every row of a
// token once for all its heads.
void SparseAttentionCpu(const ExecContext& ctx, const SparseAttentionArgs& a) {
  static thread_local SharedRows shared_rows;
  SharedRows& shared = shared_rows;
  const int64_t num_heads = a.q.dim(1), groups = CeilDiv(num_heads, kHeadGroup);
  shared.Decode(ctx, a, PadToLanes(a.q.dim(2)));
  if (a.cache.num_tokens == 0) return;
  const int64_t rows = AttendedRows(a, a.cache.num_tokens - 1).size();  // others have about as many or fewer
  const int64_t grain = GrainFor(2 * rows * a.q.dim(2) * std::min(num_heads, kHeadGroup));
  ParallelFor(ctx.pool, a.cache.num_tokens * groups, grain, [&](int64_t begin, int64_t end, int) {
    static thread_local AttentionScratch scratch;
    while (begin < end) {
      const int64_t t = begin / groups, first = begin - t * groups, last = std::min(groups, first + end - begin);
      Attend(a, shared, t, first * kHeadGroup, std::min(num_heads, last * kHeadGroup), scratch);
      begin += last - first;
    }
  });
}

}  // namespace dsv4::DSV4_ISA
