// Helpers of the micro-benchmarks. Every benchmark runs the dispatched kernel with one thread for each core that the
// process may use (one thread: `taskset -c 0 ops_bench`). It reports bytes of weights or cache, and multiply-adds, per
// second.
#pragma once

#include <vector>

#include <benchmark/benchmark.h>

#include "device/exec_context.h"
#include "support/random.h"
#include "tensor/tensor.h"

namespace dsv4::bench {

inline ExecContext Context() {
  static ThreadPool pool(/*num_threads=*/0);
  return {.pool = &pool};
}

// A float32 tensor with its memory, random by default.
class Buffer {
 public:
  explicit Buffer(Shape shape, float scale = 1) : shape_(shape) {
    test::Random random(static_cast<uint64_t>(shape.num_elements()));
    values_ = random.Uniforms(shape.num_elements(), -scale, scale);
  }
  Tensor tensor() { return {values_.data(), DType::kF32, shape_}; }
  float* data() { return values_.data(); }

 private:
  Shape shape_;
  std::vector<float> values_;
};

// Reports, per iteration, the bytes read from memory at least once, and the multiply-adds.
inline void Report(benchmark::State& state, int64_t bytes, int64_t multiply_adds = 0) {
  state.SetBytesProcessed(state.iterations() * bytes);
  if (multiply_adds > 0) {
    state.counters["MAC/s"] = benchmark::Counter(static_cast<double>(multiply_adds),
                                                 benchmark::Counter::kIsIterationInvariantRate);
  }
}

}  // namespace dsv4::bench
