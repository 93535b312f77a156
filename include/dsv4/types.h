// Small types that the whole public interface shares.
#pragma once

#include <cstdint>

namespace dsv4 {

using TokenId = int32_t;

// Storage of a cached KV row: Dh - Dr channels without position ("nope"), then Dr RoPE channels.
//   kFp8   nope channels in E4M3 with one power-of-two scale per 64 channels, RoPE channels in BF16; as in training
//   kBf16  all channels rounded to BF16
//   kF32   not rounded
enum class KvDtype : uint8_t { kFp8, kBf16, kF32 };

// Rounding of index queries and index keys.
//   kFp4   Hadamard rotation, then E2M1 with one power-of-two scale per 32 channels; as in training
//   kBf16  rounded to BF16, no Hadamard rotation
//   kF32   not rounded, no Hadamard rotation
enum class IndexDtype : uint8_t { kFp4, kBf16, kF32 };

// Rounding of the inputs of quantised linears.
//   kNative  the device's own activation type (float32 on the CPU)
//   kF32     float32
//   kFp8     E4M3 with one power-of-two scale per 128 inputs (the official recipe)
//   kNvfp4   E2M1 with one E4M3 scale per 16 inputs, and one global scale max|x| / (6 * 448) per row, from the inputs
//   kInt8, kInt16, kInt24  integers of 1, 2 or 3 bytes with one float32 scale per 32 inputs. CPU only, and only for
//            NVFP4 and MXFP4 weights, which the CPU multiplies faster by integers than by float32
enum class ActivationDtype : uint8_t { kNative, kF32, kFp8, kNvfp4, kInt8, kInt16, kInt24 };

// Steps that multiply matrices on the AMX tiles of a CPU that has them (docs/cpu.md).
//   kOff      none
//   kPrefill  steps of at least 8 tokens; their rows have other bits than rows of smaller steps
//   kAlways   all; a row does not depend on its step, but a step of one token takes longer
enum class AmxUse : uint8_t { kOff, kPrefill, kAlways };

// Returns the bytes of an input in an integer mode; 0 for the other modes.
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
