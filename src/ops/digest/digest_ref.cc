#include "ops/digest/digest.h"

namespace dsv4 {

void DigestRef(const ExecContext&, const DigestArgs& a) {
  uint64_t sum = 0;
  for (int64_t begin = 0; begin < a.bytes; begin += 8) {
    uint64_t word = 0;
    for (int64_t i = 0; i < 8 && begin + i < a.bytes; ++i) word |= uint64_t{a.data[begin + i]} << (8 * i);
    sum += DigestTerm(word, static_cast<uint64_t>(begin / 8));
  }
  *a.sum.i64() = static_cast<int64_t>(static_cast<uint64_t>(*a.sum.i64()) + sum);
}

}  // namespace dsv4
