#include "ops/stream_mean/stream_mean.h"

namespace dsv4 {

void StreamMeanRef(const ExecContext&, const StreamMeanArgs& a) {
  const int64_t num_tokens = a.streams.dim(0), h = a.streams.dim(1), d = a.streams.dim(2);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float* streams = a.streams.f32() + t * h * d;
    float* out = a.out.f32() + t * a.out.dim(1) + a.first;
    for (int64_t c = 0; c < d; ++c) {
      float sum = streams[c];
      for (int64_t k = 1; k < h; ++k) sum += streams[k * d + c];
      out[c] = sum / static_cast<float>(h);
    }
  }
}

}  // namespace dsv4
