#include "ops/linear/tile/tile_linear.h"

#include <algorithm>

#include "ops/linear/linear.h"

namespace dsv4::tile_linear {

namespace {

constexpr int64_t kInputBytes = 65536;  // bytes of x that one block reads and converts before a cluster divides K
constexpr int64_t kFewInputBytes = 2 * kInputBytes;  // the same for up to kFewTokens, whose kernel has no clusters
// up to this many tokens K is also divided if there are fewer items than multiprocessors (one token has its own kernel)
constexpr int64_t kSpreadTokens = 8;

// The tokens that the kernel for num_tokens tokens has room for.
int64_t RoomOf(int64_t num_tokens) { return num_tokens <= 2 ? num_tokens : kFewTokens; }

}  // namespace

int LogSlices(const ExecContext& ctx, int64_t tile_cols, int64_t items, int64_t num_tokens, bool few) {
  const int log_segments = LogSegments(ctx, tile_cols, items);
  const int64_t bytes = std::min<int64_t>(num_tokens, 32) * tile_cols * 256;
  const bool whole = few && bytes <= kFewInputBytes;
  int log_slices = 0;
  while (!whole && log_slices < log_segments && bytes >> log_slices > kInputBytes) ++log_slices;
  while (num_tokens > 1 && num_tokens <= kSpreadTokens && log_slices < log_segments &&
         items << (log_slices + 1) <= ctx.gpu.multiprocessors)
    ++log_slices;
  return log_slices;
}

size_t SharedBytes(const BlockShape& b, int64_t num_tokens, int numbers, int slots) {
  const int64_t slices = int64_t{1} << b.log_slices;
  int64_t bytes = kWarps * slots * kSlotBytes + CeilDiv(b.tile_cols, slices) * num_tokens * 128 * numbers;
  if (b.log_segments > 0)
    bytes += (num_tokens << (b.log_segments - b.log_slices)) * StrideOfSums(static_cast<int>(b.max_items)) * 4;
  if (b.log_slices > 0) bytes += 2 * num_tokens * slices * CeilDiv(4 * b.max_items, slices) * 16;
  return static_cast<size_t>(bytes);
}

bool OneTokenFits(const BlockShape& b, int64_t num_tokens, int slots) {
  return b.log_slices == 0 && SharedBytes(b, num_tokens, kPair, slots) <= kMostShared &&
         (b.log_segments == 0 || 16 * b.max_items <= kThreads);
}

bool OneTokenTakes(const ExecContext& ctx, int64_t num_tokens, std::span<const QuantTensor> matrices, int64_t groups) {
  const QuantTensor& w = matrices.front();
  if (num_tokens > kFewTokens || w.cols % 8 != 0 || (groups > 1 && w.rows / groups % 16 != 0)) return false;
  int64_t items = 0;
  bool mixed = false;
  for (const QuantTensor& m : matrices) items += ItemsOf(m, groups), mixed = mixed || m.format != w.format;
  const int64_t tile_cols = CeilDiv(w.cols, kTileCols64);
  const int64_t blocks = std::min<int64_t>({ctx.gpu.multiprocessors, items, kMaxClusters});
  const int log_segments = LogSegments(ctx, tile_cols, items);
  if (groups > blocks || (mixed && log_segments == 0)) return false;
  // With several formats each block has one format, and a block of the smallest gets more than its share: at most this
  // many.
  const BlockShape block = {.tile_cols = tile_cols,
                            .max_items = CeilDiv(items / groups, blocks / groups) * (mixed ? 4 : 1),
                            .log_segments = log_segments,
                            .log_slices = LogSlices(ctx, tile_cols, items, num_tokens, /*few=*/!mixed)};
  const int64_t room = RoomOf(num_tokens);
  const bool small_ring = room == kFewTokens && log_segments > 0 && !mixed;
  return OneTokenFits(block, room, small_ring ? kSlots - 1 : kSlots);
}

bool Pushes(const ExecContext& ctx, int64_t num_tokens, const QuantTensor& w) {
  const int64_t tile_cols = w.cols / kTileCols64, items = w.rows / 16, sms = ctx.gpu.multiprocessors;
  // With several tokens fewer items would be spread over clusters.
  const bool room = num_tokens == 1
                        ? tile_cols <= 256 && items <= 32 * sms
                        : num_tokens <= kFewTokens && tile_cols <= 64 && items <= 4 * sms && 2 * items > sms;
  return room && w.cols % kTileCols64 == 0 && tile_cols % (8 * TilesOfChunk(w.format)) == 0 && w.rows % 16 == 0 &&
         !IsDirect(ctx, tile_cols, items) && OneTokenTakes(ctx, num_tokens, {&w, 1}, 1);
}

}  // namespace dsv4::tile_linear
