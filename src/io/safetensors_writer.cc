#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/str.h"
#include "dsv4/tensor_file.h"
#include "io/safetensors.h"

namespace dsv4 {

namespace {

std::string QuoteJson(const std::string& s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out + "\"";
}

}  // namespace

Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors) {
  std::string header = "{";
  int64_t offset = 0;
  for (const TensorToWrite& t : tensors) {
    int64_t elements = 1;
    std::string dims;
    for (const int64_t d : t.shape) {
      elements *= d;
      dims += StrCat(dims.empty() ? "" : ",", d);
    }
    const auto num_bytes = static_cast<int64_t>(t.bytes.size());
    if (elements * SizeOf(t.dtype) != num_bytes) {
      return InvalidArgument(StrCat("cannot write '", path, "': tensor '", t.name, "' of shape [", dims,
                                    "] has ", num_bytes, " bytes"));
    }
    header += StrCat(header.size() > 1 ? "," : "", QuoteJson(t.name), ":{\"dtype\":\"", NameOf(t.dtype),
                     "\",\"shape\":[", dims, "],\"data_offsets\":[", offset, ",", offset + num_bytes, "]}");
    offset += num_bytes;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');

  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  std::vector<std::string_view> pieces = {length, header};
  for (const TensorToWrite& t : tensors) {
    pieces.emplace_back(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  }
  return WriteFile(path, pieces);
}

Status WriteTensorFile(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<TensorToWrite> out;
  for (const NamedTensor& t : tensors) {
    const auto add = [&](auto values, DType dtype) {
      out.push_back(
          {t.name, dtype, t.shape, {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()}});
    };
    if (const auto* f32 = std::get_if<std::span<const float>>(&t.values)) add(*f32, DType::kF32);
    if (const auto* i32 = std::get_if<std::span<const int32_t>>(&t.values)) add(*i32, DType::kI32);
  }
  return WriteSafetensors(path, out);
}

}  // namespace dsv4
