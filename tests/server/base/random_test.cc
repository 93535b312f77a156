#include "server/base/random.h"

#include <array>
#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace dsv4::server {
namespace {

using Bits = std::vector<uint64_t>;

// Returns the length of the shortest linear recurrence that produces the bits (Berlekamp-Massey). Random bits have
// about half their number. A generator that only shifts and adds its state, as the Mersenne twister and the xorshift
// family do, has at most the bits of its state.
size_t LinearComplexity(const std::vector<bool>& bits) {
  const size_t words = bits.size() / 64 + 2;
  Bits c(words), b(words), recent(words);  // recent: the last bits, the latest one first
  c[0] = b[0] = 1;
  size_t length = 0, since = 1;
  for (size_t n = 0; n < bits.size(); ++n) {
    for (size_t i = words; i-- > 1;) recent[i] = recent[i] << 1 | recent[i - 1] >> 63;
    recent[0] = recent[0] << 1 | static_cast<uint64_t>(bits[n]);
    uint64_t sum = 0;
    for (size_t i = 0; i <= length / 64; ++i) sum ^= c[i] & recent[i];
    if (std::popcount(sum) % 2 == 0) {
      ++since;
      continue;
    }
    const Bits before = c;
    const size_t skip = since / 64, shift = since % 64;
    for (size_t i = skip; i < words; ++i) {
      c[i] ^= b[i - skip] << shift;
      if (shift > 0 && i > skip) c[i] ^= b[i - skip - 1] >> (64 - shift);
    }
    if (2 * length <= n) {
      length = n + 1 - length;
      b = before;
      since = 1;
    } else {
      ++since;
    }
  }
  return length;
}

TEST(RandomHex, LaterDigitsDoNotFollowFromEarlierOnes) {
  // More bits than twice the state of the Mersenne twister (19,937). One bit per id: a client sees the ids of its own
  // requests only.
  constexpr size_t kIds = 41000;
  std::vector<bool> bits;
  std::set<std::string> ids;
  std::array<int, 16> counts{};
  for (size_t i = 0; i < kIds; ++i) {
    const std::string id = RandomHex(24);
    ASSERT_EQ(id.size(), 24u);
    ASSERT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
    bits.push_back((id[0] & 1) != 0);
    for (const char c : id) ++counts[static_cast<size_t>(c <= '9' ? c - '0' : c - 'a' + 10)];
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), kIds);
  EXPECT_NEAR(static_cast<double>(LinearComplexity(bits)), kIds / 2.0, 64);  // beyond 64: chance 2^-127
  constexpr double kExpected = 24.0 * kIds / 16;
  for (const int count : counts) EXPECT_NEAR(count, kExpected, 0.04 * kExpected);  // ten standard deviations
  EXPECT_EQ(RandomHex(0), "");
  EXPECT_TRUE(CheckRandomSource().ok());
}

TEST(RandomHex, TheTestNoticesALinearGenerator) {
  uint64_t state = 88172645463325252u;  // xorshift64
  std::vector<bool> bits;
  for (int i = 0; i < 1000; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    bits.push_back((state & 1) != 0);
  }
  EXPECT_LE(LinearComplexity(bits), 64u);
}

}  // namespace
}  // namespace dsv4::server
