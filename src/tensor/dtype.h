// Element types of files and memory.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsv4 {

enum class DType : uint8_t { kF32, kBf16, kF16, kF8E4M3, kF8E8M0, kU8, kI8, kI32, kI64 };

constexpr int64_t SizeOf(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kI64:
      return 8;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kU8:
    case DType::kI8:
      return 1;
  }
  return 0;
}

constexpr std::string_view NameOf(DType t) {  // safetensors' spelling
  switch (t) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E8M0:
      return "F8_E8M0";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
  }
  return "?";
}

}  // namespace dsv4
