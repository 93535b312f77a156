// Eight values at a time, for loops with DSV4_VECTOR_CLONES. A processor with narrower registers takes several.
// Functions get them by reference, because the registers of arguments depend on the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dsv4::internal {

inline constexpr size_t kWide = 8;
typedef float Floats __attribute__((vector_size(4 * kWide)));
typedef int32_t Ints __attribute__((vector_size(4 * kWide)));
typedef double Doubles __attribute__((vector_size(8 * kWide)));
typedef uint64_t Words __attribute__((vector_size(8 * kWide)));
typedef int64_t Longs __attribute__((vector_size(8 * kWide)));

// Copies the bytes: values, or the bits of values of another type.
template <typename T>
inline void Load(const void* from, T& to) {
  std::memcpy(&to, from, sizeof(T));
}

}  // namespace dsv4::internal
