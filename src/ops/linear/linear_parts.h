// The matrices of a linear ("parts" in code): one, or several that share its input.
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
  Tensor y;       // f32 [T, G*N]; not x, not another matrix's y
  // Instead of y, which is then not written:
  uint8_t* y_blocks = nullptr;  // FP16 in blocks; the only matrix of the call; only if LinearWritesBlocks
  QueryBlocks queries = {};     // only if LinearTakesBlocks
  // Also sends y to the other ranks, as the pass's collective of this number, which the next bridge sums (hc_bridge.h).
  // The only matrix of the call; only if LinearPushes.
  int64_t push_site = kNoSite;
};

// Initialises and copies only the elements that exist, because a layer calls a dozen linears, mostly with one matrix.
// The engine sets arguments that contain LinearParts by assignment: in an aggregate initialisation GCC clears the whole
// array.
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
  // The only element: CPU kernels get one.
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
