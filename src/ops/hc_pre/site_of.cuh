// Makes a Site from the arguments of hc_pre or hc_bridge.
#pragma once

#include "ops/hc_pre/site.cuh"

namespace dsv4::hc {

// The fields that both have.
template <typename Args>
Site SiteOf(const Args& a) {
  return {.streams = a.streams.f32(),
          .fn = a.fn.codes,
          .base = a.base.f32(),
          .scale = a.scale.f32(),
          .x = a.x.f32(),
          .post = a.post.f32(),
          .comb = a.comb.f32(),
          .num_streams = static_cast<int>(a.streams.dim(1)),
          .d = static_cast<int>(a.streams.dim(2)),
          .num_mixes = static_cast<int>(a.fn.rows),
          .iters = static_cast<int>(a.iters),
          .num_tokens = a.streams.dim(0),
          .eps = a.eps,
          .site_norm_eps = a.norm_eps,
          .bf16 = a.fn.format == WeightFormat::kBf16};
}

}  // namespace dsv4::hc
