// The safetensors format: 8 bytes of header length, a JSON header, the tensors' bytes (docs/dev/formats.md).
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4/status.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = int64_t{512} << 20;

// One tensor of a file. Names and bytes are views: they live as long as the file's map.
struct FileTensor {
  std::string_view name;
  std::string_view dtype_name;  // the file's spelling
  DType dtype = DType::kF32;    // meaningless unless dtype_known
  bool dtype_known = false;     // false: this engine does not read the type; only its use is an error
  Shape shape;
  const uint8_t* data = nullptr;  // may be unaligned
  int64_t num_bytes = 0;
  int32_t file = 0;  // number of the file within its TensorSource
};

struct SafetensorsHeader {
  std::vector<FileTensor> tensors;    // in the header's order
  std::deque<std::string> unescaped;  // names that the file writes with escapes
};

// Reads and checks the header of a whole file in memory: lengths, offsets within the file, type x shape = length,
// unique names, and no overlap. Accepts bytes that belong to no tensor (alignment padding). `what` names the file in
// errors.
Result<SafetensorsHeader> ParseSafetensors(std::span<const uint8_t> bytes, std::string_view what);

// One tensor of a file's header.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t num_bytes() const;
};

// Returns the bytes before the tensors' data: the header's length and the header, padded to 8 bytes. The data of
// `tensors` must follow in their order, without gaps.
std::string SafetensorsPrologue(std::span<const TensorEntry> tensors);

// One tensor to write; `bytes` has shape x dtype bytes.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
};

// Writes a safetensors file, with the header padded to 8 bytes. It writes a temporary file and renames it when it is
// complete.
Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors);

}  // namespace dsv4
