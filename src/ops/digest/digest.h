// A digest of bytes, to compare two pieces of memory:
//   sum += sum over i of MixBits(word_i + (i + 1) kDigestStep), modulo 2^64
// word_i: bytes 8 i to 8 i + 7, little-endian; the last word is filled up with zeros, so the caller compares sizes too.
// Two contents that differ in one word have different digests, because MixBits is a bijection. Other different contents
// have the same digest with a probability near 2^-64, unless someone chose them for it.
// The result is the same on every device and for every number of threads: the order of additions does not matter.
#pragma once

#include "base/random.h"
#include "ops/registry.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr uint64_t kDigestStep = 0x9e3779b97f4a7c15u;

constexpr uint64_t DigestTerm(uint64_t word, uint64_t index) { return MixBits(word + (index + 1) * kDigestStep); }

struct DigestArgs {
  const uint8_t* data = nullptr;  // memory that the device's kernels read, at any address
  int64_t bytes = 0;
  Tensor sum;  // i64 [1], in place: the bits of an unsigned number
};
void Digest(const ExecContext& ctx, const DigestArgs& args);
OpImplementations DescribeDigest(const ExecContext& ctx);

}  // namespace dsv4
