// Small types shared by the whole public interface.
#pragma once

#include <cstdint>

namespace dsv4 {

using TokenId = int32_t;

// How a cached KV row is stored (Dh channels: Dh-Dr "nope" channels, then Dr RoPE channels).
//   kFp8   nope in E4M3 with one power-of-two scale per 64 channels, RoPE in BF16: what the model was trained with
//   kBf16  every channel rounded to BF16
//   kF32   unrounded
enum class KvDtype : uint8_t { kFp8, kBf16, kF32 };

// How index queries and index keys are rounded.
//   kFp4   Hadamard rotation, then E2M1 with one power-of-two scale per 32 channels: what the model was trained with
//   kBf16 / kF32  rounded to BF16 / unrounded, without the Hadamard rotation
enum class IndexDtype : uint8_t { kFp4, kBf16, kF32 };

// How the inputs of quantised linears are rounded.
//   kNative  the device's own activation type (float32 on the CPU)
//   kF32     float32
//   kFp8     E4M3 with one power-of-two scale per 128 inputs (the official recipe)
//   kNvfp4   E2M1 with an E4M3 scale per 16 inputs and a global scale max|x| / (6 * 448) taken per row at run time
//   kInt8, kInt16, kInt24  integers of one, two or three bytes with a float32 scale per 32 inputs, for NVFP4 and MXFP4
//            weights only, which they multiply faster than float32 does; CPU only
enum class ActivationDtype : uint8_t { kNative, kF32, kFp8, kNvfp4, kInt8, kInt16, kInt24 };

// Which steps multiply matrices on the AMX tiles of a CPU that has them (docs/cpu.md).
//   kOff      none
//   kPrefill  those of at least 8 tokens: their rows have other bits than rows of smaller steps
//   kAlways   all: rows do not depend on their step, but one token takes longer
enum class AmxUse : uint8_t { kOff, kPrefill, kAlways };

// Bytes of an integer mode; 0 for the others.
constexpr int IntegerBytes(ActivationDtype a) {
  switch (a) {
    case ActivationDtype::kInt8:
      return 1;
    case ActivationDtype::kInt16:
      return 2;
    case ActivationDtype::kInt24:
      return 3;
    default:
      return 0;
  }
}
constexpr bool IsInteger(ActivationDtype a) { return IntegerBytes(a) > 0; }

}  // namespace dsv4
