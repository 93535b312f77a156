// From named tensors in files to the model's weights: strict, by name, shape and type.
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
  // Block scales of FP4 weights are all checked for NaN while they are at most this long together; beyond, those of
  // every n-th tensor are, n so that the part stays below. (In a 900 GB checkpoint they are 90 GB.) FP8 grids, global
  // scales and vectors are always checked.
  int64_t scale_check_bytes = int64_t{64} << 20;
};

struct BindReport {
  std::vector<std::string> unused_tensors;  // of a draft module (mtp.*) that is not bound, as the files name them
  std::vector<FormatSummary> formats;       // of what is bound; in order of first use
  int64_t weight_bytes = 0;                 // bound, in the files
  int64_t widened_bytes = 0;                // copied: vectors as f32, hash tables as i32
};

// Views of everything the config asks for. Formats are told from each tensor's type and siblings alone; official and
// transformers' names, with or without `model.`. A tensor that is missing, unknown, of another shape or type, or there
// twice is an error of one line with its name, both shapes and its file; so are NaN or infinite vectors and scales and
// hash tables that name experts that do not exist. Weights::storage keeps `source` alive. `report` may be null.
Result<Weights> BindWeights(const Config& config, std::shared_ptr<const TensorSource> source,
                            BindReport* report = nullptr, const BindOptions& options = {});

}  // namespace dsv4::deepseek_v4
