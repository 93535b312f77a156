// Writes named tensors to a safetensors file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "dsv4/export.h"
#include "dsv4/status.h"

namespace dsv4 {

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;  // slowest axis first; the product is the number of values
  std::variant<std::span<const float>, std::span<const int32_t>> values;
};

// Writes `path` atomically: the whole file or nothing. Errors name the file: kNotFound (the folder does not exist),
// kResourceExhausted (the disk is full), kInvalidArgument (the path cannot be written).
DSV4_API Status WriteTensorFile(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace dsv4
