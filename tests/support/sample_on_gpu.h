// The op of ops/sample on the GPU with the arguments of a test on the host. Copies the rows' counts back.
#pragma once

#include <vector>

#include "ops/sample/sample.h"
#include "support/cuda_mirror.h"

namespace dsv4::test {

inline void SampleOnGpu(const ExecContext&, const SampleArgs& a) {
  const int64_t v = a.logits.dim(1), masks = (v + 31) / 32;
  Mirror gpu;
  const auto in = [&](const auto* values, int64_t count) {
    using T = std::remove_cvref_t<decltype(*values)>;
    return values == nullptr ? nullptr : gpu.Array(std::vector<T>(values, values + count));
  };
  const auto counts = [&](uint16_t* c) {
    return c == nullptr ? nullptr : static_cast<uint16_t*>(gpu.Out({c, DType::kBf16, {v}}).data);
  };
  std::vector<SampleRow> rows(a.rows, a.rows + a.logits.dim(0));
  for (SampleRow& row : rows) {
    row.prompt_count = in(row.prompt_count, v);
    row.output_count = counts(row.output_count);
    row.bias_ids = in(row.bias_ids, row.num_bias);
    row.bias = in(row.bias, row.num_bias);
    row.allowed = in(row.allowed, masks);
    row.also = in(row.also, row.num_also);
  }
  const Tensor on_device = gpu.Out({rows.data(), DType::kU8, {static_cast<int64_t>(rows.size() * sizeof(SampleRow))}});
  Sample(gpu.ctx(), {.logits = gpu.In(a.logits),
                     .rows = static_cast<SampleRow*>(on_device.data),
                     .tokens = gpu.Out(a.tokens),
                     .logprobs = gpu.Out(a.logprobs)});
  gpu.Finish();
  for (size_t i = 0; i < rows.size(); ++i) a.rows[i].num_outputs = rows[i].num_outputs;
}

}  // namespace dsv4::test
