// Binds named tensors of files to the model's weights, with strict checks of name, shape and type.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/inspect.h"
#include "dsv4/status.h"
#include "io/tensor_source.h"
#include "model/deepseek_v4/config/config.h"
#include "model/deepseek_v4/schema/weights.h"

namespace dsv4::deepseek_v4 {

struct BindOptions {
  // The block scales of FP4 weights are checked for NaN: all of them up to this many bytes, above it only every n-th
  // tensor. n is the smallest number that stays below the limit. (A 900 GB checkpoint has 90 GB of them.) FP8
  // grids, global scales and vectors are always checked.
  int64_t scale_check_bytes = int64_t{64} << 20;
};

struct BindReport {
  // tensors of a draft module (mtp.*) that is not bound, with the files' names
  std::vector<std::string> unused_tensors;
  // values that the model does not use: an infinite input_scale, inv_freq, scales of a KV cache or next to BF16
  std::vector<std::string> skipped_tensors;
  std::string unusable_draft;          // the error of a draft module that is left out; empty: none
  std::vector<FormatSummary> formats;  // formats of the bound weights, in order of first use
  int64_t weight_bytes = 0;            // bytes of the bound weights in the files
  int64_t widened_bytes = 0;           // bytes that were copied: vectors as f32, hash tables as i32
};

// Returns views of everything that the config requires. The type and the siblings of a tensor determine its format.
// Accepts every spelling of OfficialName, mixed in any way. These are errors: a tensor that is missing,
// unknown, present twice, or of another shape or type; NaN or infinity in vectors and scales; hash tables with experts
// that do not exist. An error is one line with the tensor's name, both shapes and its file. Weights::storage keeps
// `source` alive. `report` may be null.
Result<Weights> BindWeights(const Config& config, std::shared_ptr<const TensorSource> source,
                            BindReport* report = nullptr, const BindOptions& options = {});

}  // namespace dsv4::deepseek_v4
