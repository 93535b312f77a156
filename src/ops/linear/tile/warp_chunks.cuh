// A warp's loop over the packed tiles that it multiplies with one token or a few. Bulk copies load chunks of tiles into
// the warp's own ring in shared memory. The first chunk is decoded before x is available. The place of a chunk is
// requested again as soon as the chunk is read. The caller selects the next chunk: `ask(slot, barrier)`, two addresses
// in shared memory, requests it, or does nothing after the last one.
#pragma once

#include "ops/linear/tile/one_token.cuh"

namespace dsv4::tile_linear {

// kChunk: tiles of a chunk. kWhole: all chunks have kChunk tiles. kRingSlots places of kSlot bytes.
template <WeightFormat F, int kTokens, int kChunk, bool kWhole, int kRingSlots, int kSlot>
class WarpChunks {
 public:
  using Products = OneTokenTiles<F, kTokens>;
  static constexpr int kTile = static_cast<int>(TileBytes(F));
  static_assert(kChunk * kTile <= kSlot);

  // For warp number `warp` of its block. `rings` and `barriers` are the addresses of the first warp's kRingSlots places
  // and barriers; the other warps' follow.
  __device__ __forceinline__ WarpChunks(uint32_t rings, uint32_t barriers, int warp)
      : ring_(rings + warp * (kRingSlots * kSlot)),
        barriers_(barriers + warp * (kRingSlots * 8)),
        slot_(ring_),
        barrier_(barriers_) {
    if (ElectLane()) {
#pragma unroll
      for (int s = 0; s < kRingSlots; ++s) BarrierInit(barriers_ + 8 * s, 1);
      BarrierInitFence();
    }
    __syncwarp();
  }

  // Requests chunks until the ring is full.
  template <typename Ask>
  __device__ __forceinline__ void Fill(const Ask& ask) const {
#pragma unroll 1
    for (int s = 0; s < kRingSlots; ++s) ask(ring_ + s * kSlot, barriers_ + 8 * s);
  }

  // Decodes the first chunk after Begin.
  template <typename Ask>
  __device__ __forceinline__ void DecodeFirst(const Products& products, uint32_t (&early)[kChunk][4][4],
                                              const Ask& ask) const {
    BarrierWait(barrier_, phase_);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (kWhole || i < left_) products.Decode(slot_ + i * kTile, early[i]);
    }
    WaitForTiles(early, kWhole ? kChunk : left_);
    __syncwarp();
    ask(slot_, barrier_);
  }

  // Begins `count` tiles, whose x begins at `x` in shared memory. MultiplyFirst has its own argument for it.
  __device__ __forceinline__ void Begin(int count, uint32_t x = 0) { left_ = count, x_ = x; }

  __device__ __forceinline__ int left() const { return left_; }

  // Multiplies the chunk that DecodeFirst decoded; scale_of(i): the scale of its tile i (FP8).
  template <typename ScaleOf>
  __device__ __forceinline__ void MultiplyFirst(Products& products, const uint32_t (&early)[kChunk][4][4], uint32_t x,
                                                const ScaleOf& scale_of) {
    x_ = x;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (kWhole || i < left_) products.Multiply(early[i], x_, i, scale_of(i));
    }
    Next();
  }

  // Multiplies all remaining chunks.
  template <typename ScaleOf, typename Ask>
  __device__ __forceinline__ void MultiplyRest(Products& products, const ScaleOf& scale_of, const Ask& ask) {
    const auto one = [&](int i) {
      uint32_t a[4][4];
      products.Decode(slot_ + i * kTile, a);
      products.Multiply(a, x_, i, scale_of(i));
    };
#pragma unroll 1
    while (left_ > 0) {
      BarrierWait(barrier_, phase_);
      if (kWhole || left_ >= kChunk) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) one(i);
      } else {
#pragma unroll
        for (int i = 0; i < kChunk - 1; ++i) {
          if (i < left_) one(i);
        }
      }
      __syncwarp();
      ask(slot_, barrier_);
      Next();
    }
  }

 private:
  __device__ __forceinline__ void Next() {
    x_ += kChunk * Products::kTile;
    slot_ += kSlot;
    barrier_ += 8;
    if (slot_ == ring_ + kRingSlots * kSlot) slot_ = ring_, barrier_ = barriers_, phase_ ^= 1;
    left_ -= kChunk;
  }

  uint32_t ring_, barriers_;             // of the warp
  uint32_t slot_, barrier_, phase_ = 0;  // of the next chunk
  uint32_t x_ = 0;
  int left_ = 0;
};

// For all formats except FP8.
struct NoScales {
  __device__ __forceinline__ float operator()(int) const { return 0; }
};

}  // namespace dsv4::tile_linear
