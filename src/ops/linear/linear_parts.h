// The matrices of a linear: one, or several that share its input.
#pragma once

#include <initializer_list>
#include <memory>
#include <type_traits>

#include "base/check.h"
#include "ops/query_blocks.h"
#include "tensor/quant_tensor.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int kMaxLinearParts = 8;
inline constexpr int64_t kNoSite = -1;

struct LinearPart {
  QuantTensor w;  // [G*N, K], any format
  Tensor y;       // f32 [T, G*N]; not x, nor another part's
  // Instead of y, which is then not written:
  uint8_t* y_blocks = nullptr;  // FP16 in blocks, of a part alone; only where LinearWritesBlocks
  QueryBlocks queries = {};     // only where LinearTakesBlocks
  // y besides to the other ranks, of a part alone: as the pass's exchange of this number, which the next bridge sums
  // (hc_bridge.h); only where LinearPushes.
  int64_t push_site = kNoSite;
};

// Only the parts that are there are written or copied: a layer calls a dozen linears, mostly of one part. A step makes
// arguments that hold them by assignment: of an aggregate that is initialised, GCC clears everything.
class LinearParts {
  static_assert(std::is_trivially_copyable_v<LinearPart>);

 public:
  LinearParts() {}                                        // NOLINT: no part exists yet
  LinearParts(std::initializer_list<LinearPart> parts) {  // NOLINT: .parts = {{w, y}}
    for (const LinearPart& part : parts) Add(part);
  }
  LinearParts(const LinearParts& other) { *this = other; }
  LinearParts& operator=(const LinearParts& other) {
    if (this == &other) return *this;
    size_ = 0;
    for (const LinearPart& part : other) Add(part);
    return *this;
  }

  void Add(const LinearPart& part) {
    DSV4_CHECK(size_ < kMaxLinearParts, "more than ", kMaxLinearParts, " matrices of one input");
    std::construct_at(&parts_[size_++], part);
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const LinearPart* begin() const { return parts_; }
  const LinearPart* end() const { return parts_ + size_; }
  const LinearPart& operator[](int i) const { return parts_[i]; }
  LinearPart& operator[](int i) { return parts_[i]; }
  // The one there is: what kernels of a CPU are given.
  const LinearPart& only() const {
    DSV4_CHECK_EQ(size_, 1);
    return parts_[0];
  }

 private:
  union {
    LinearPart parts_[kMaxLinearParts];
  };
  int size_ = 0;
};

}  // namespace dsv4
