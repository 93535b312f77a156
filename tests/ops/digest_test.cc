#include "ops/digest/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/devices.h"
#include "support/guard_buffer.h"
#include "support/random.h"

namespace dsv4::test {
namespace {

void DigestOnGpu(const ExecContext&, const DigestArgs& a) {
  Mirror gpu;
  // One byte more at the beginning, so that words also have odd addresses.
  std::vector<uint8_t> shifted(static_cast<size_t>(a.bytes) + 1);
  const auto odd = reinterpret_cast<uintptr_t>(a.data) % 2;
  std::copy(a.data, a.data + a.bytes, shifted.begin() + static_cast<ptrdiff_t>(odd));
  const Tensor bytes = gpu.In({shifted.data(), DType::kU8, {static_cast<int64_t>(shifted.size())}});
  Digest(gpu.ctx(), {.data = static_cast<const uint8_t*>(bytes.data) + odd, .bytes = a.bytes, .sum = gpu.Out(a.sum)});
  gpu.Finish();
}

uint64_t DigestOf(const Place<DigestArgs>& at, const uint8_t* data, size_t bytes, uint64_t begin = 0) {
  GuardBuffer<int64_t> sum({1}, {static_cast<int64_t>(begin)});
  at.run({.data = data, .bytes = static_cast<int64_t>(bytes), .sum = sum.tensor()});
  return static_cast<uint64_t>(sum.values()[0]);
}

std::vector<uint8_t> RandomBytes(size_t n) {
  Random random(5);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.Index(256));
  return bytes;
}

DSV4_DEVICE_TEST(Digest, IsTheSumOfItsContract) {
  for (const auto& at : Places(on, Digest, DigestOnGpu)) {
    const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const uint64_t want = MixBits(0x0807060504030201u + kDigestStep) + MixBits(0x0A09u + 2 * kDigestStep);
    EXPECT_EQ(DigestOf(at, bytes.data(), bytes.size()), want) << at.name;
    EXPECT_EQ(DigestOf(at, bytes.data(), bytes.size(), 7), want + 7) << at.name;
    EXPECT_EQ(DigestOf(at, bytes.data(), 0, 7), 7u) << at.name;
  }
}

// Sizes around words and the parts of threads, at even and odd addresses.
DSV4_DEVICE_TEST(Digest, IsTheSameOnEveryDevice) {
  const std::vector<uint8_t> bytes = RandomBytes((1 << 20) + 20);
  for (const auto& at : Places(on, Digest, DigestOnGpu)) {
    for (const size_t n : {1, 7, 8, 9, 63, 64, 4095, 32768, 131071, 131072, 131080, 1 << 20, (1 << 20) + 5}) {
      for (const size_t begin : {0, 1, 4}) {
        const Place<DigestArgs> reference{"ref", {.reference_ops = true}, Digest};
        EXPECT_EQ(DigestOf(at, bytes.data() + begin, n), DigestOf(reference, bytes.data() + begin, n))
            << at.name << ", " << n << " bytes from " << begin;
      }
    }
  }
}

DSV4_DEVICE_TEST(Digest, SeesEveryByte) {
  for (const auto& at : Places(on, Digest, DigestOnGpu)) {
    std::vector<uint8_t> bytes = RandomBytes(531);
    const uint64_t digest = DigestOf(at, bytes.data(), bytes.size());
    for (uint8_t& b : bytes) {
      b ^= 1;
      EXPECT_NE(DigestOf(at, bytes.data(), bytes.size()), digest) << at.name << ", byte " << &b - bytes.data();
      b ^= 1;
    }
    std::swap(bytes[8], bytes[16]);
    EXPECT_NE(DigestOf(at, bytes.data(), bytes.size()), digest) << at.name;
  }
}

}  // namespace
}  // namespace dsv4::test
