#include "ops/pack_weight/tight.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace dsv4 {

namespace {

// The exponents seen so far.
struct Exponents {
  int least = std::numeric_limits<int>::max(), most = std::numeric_limits<int>::min();
  bool Takes(int e) const { return std::max(most, e) - std::min(least, e) <= kTightSpan; }
  void Add(int e) { least = std::min(least, e), most = std::max(most, e); }
  bool any() const { return least <= most; }
};

class TightScan {
 public:
  // skip_zeros: ignores every block of zeros; otherwise only blocks of zeros whose scales do not fit.
  TightScan(const QuantTensor& w, bool skip_zeros)
      : w_(w), block_(InfoOf(w.format).block_cols), blocks_(w.cols / block_), skip_zeros_(skip_zeros) {}

  bool Run(Exponents* seen) const {
    for (int64_t n = 0; n < w_.rows; ++n) {
      if (!(!skip_zeros_ && WholeRow(n, seen)) && !BlockByBlock(n, seen)) return false;
    }
    return true;
  }

 private:
  const uint8_t* Scales(int64_t n) const { return w_.block_scale + n * blocks_; }

  // Uses the row's least and largest byte, if all scales are powers of two, equal in pairs. False: the result is
  // unknown.
  bool WholeRow(int64_t n, Exponents* seen) const {
    const uint8_t* s = Scales(n);
    const bool nvfp4 = block_ == kNvfp4BlockSize;
    if (nvfp4 && blocks_ % 2 != 0) return false;
    uint8_t least = 255, most = 0, odd = 0;
    for (int64_t i = 0; i < blocks_; ++i) least = std::min(least, s[i]), most = std::max(most, s[i]);
    if (nvfp4) {
      for (int64_t i = 0; i < blocks_; i += 2) odd |= static_cast<uint8_t>((s[i] & 0x87u) | (s[i] ^ s[i + 1]));
    }
    if (odd != 0) return false;
    const int low = ScaleExponent(w_.format, least), high = ScaleExponent(w_.format, most);
    if (low == kNoExponent || high == kNoExponent || !seen->Takes(low) || !seen->Takes(high) || high - low > kTightSpan)
      return false;
    seen->Add(low), seen->Add(high);
    return true;
  }

  bool BlockByBlock(int64_t n, Exponents* seen) const {
    const int64_t in_32 = kMxfp4BlockSize / block_;
    for (int64_t i = 0; i < blocks_; i += in_32) {
      int of_32 = kNoExponent;
      for (int64_t j = i; j < std::min(i + in_32, blocks_); ++j) {
        const uint8_t scale = Scales(n)[j];
        const int e = ScaleExponent(w_.format, scale);
        const bool fits = e != kNoExponent && seen->Takes(e) && (of_32 == kNoExponent || of_32 == e);
        if ((!fits || skip_zeros_) && !IsNan(scale) && IsZero(n, j, scale)) continue;
        if (!fits) return false;
        of_32 = e;
        seen->Add(e);
      }
    }
    return true;
  }

  bool IsNan(uint8_t scale) const { return block_ == kNvfp4BlockSize ? (scale & 0x7F) == 0x7F : scale == 0xFF; }
  bool IsZero(int64_t n, int64_t block, uint8_t scale) const {
    if (block_ == kNvfp4BlockSize && (scale & 0x7F) == 0) return true;
    const uint8_t* codes = w_.codes + n * w_.row_bytes() + block * block_ / 2;
    for (int64_t i = 0; i < block_ / 2; i += 8) {
      uint64_t sixteen;
      std::memcpy(&sixteen, codes + i, 8);
      if (!AreZeros(sixteen)) return false;
    }
    return true;
  }

  const QuantTensor& w_;
  const int64_t block_, blocks_;
  const bool skip_zeros_;
};

}  // namespace

std::optional<int> FindTightBase(const QuantTensor& w) {
  int global = 0;
  if (FormatOfRows(w.format) == WeightFormat::kNvfp4) {
    if (!std::isnormal(w.global_scale) || w.global_scale < 0) return {};
    global = std::ilogb(w.global_scale);
    if (std::ldexp(1.0f, global) != w.global_scale) return {};
  }
  for (const bool skip_zeros : {false, true}) {
    Exponents seen;
    if (!TightScan(w, skip_zeros).Run(&seen)) continue;
    const int base = seen.any() ? seen.least + global : 0;
    if (base >= kLeastTightBase && base <= kMostTightBase) return base;
  }
  return {};
}

}  // namespace dsv4
