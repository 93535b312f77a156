// Experts' matrices as packed by PackWeight, with owned bytes.
#pragma once

#include <list>
#include <span>
#include <vector>

#include "ops/experts/experts.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::test {

class ExpertsInTiles {
 public:
  // `rows`: must be in rows and not float32.
  explicit ExpertsInTiles(std::span<const ExpertMatrices> rows) : matrices_(rows.begin(), rows.end()) {
    for (ExpertMatrices& m : matrices_) {
      for (QuantTensor* w : {&m.gate, &m.up, &m.down}) {
        std::vector<uint8_t>& codes = bytes_.emplace_back(static_cast<size_t>(PackedCodeBytes(*w)));
        std::vector<uint8_t>& scales = bytes_.emplace_back(static_cast<size_t>(PackedScaleBytes(*w)));
        const PackWeightArgs args{.w = *w, .codes = codes.data(), .block_scale = scales.data()};
        PackWeight({}, args);
        *w = PackedView(args);
      }
    }
  }
  const std::vector<ExpertMatrices>& matrices() const { return matrices_; }

 private:
  std::list<std::vector<uint8_t>> bytes_;
  std::vector<ExpertMatrices> matrices_;
};

}  // namespace dsv4::test
