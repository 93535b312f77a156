// Results as files that every tool reads: tensors by name in a safetensors file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "dsv4/status.h"

namespace dsv4 {

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;  // slowest axis first; its product is the number of values
  std::variant<std::span<const float>, std::span<const int32_t>> values;
};

// Writes `path` whole or not at all. Errors name the file: kNotFound (no such folder), kResourceExhausted (no room on
// the disk), kInvalidArgument (it cannot be written).
Status WriteTensorFile(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace dsv4
