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

int64_t TensorEntry::num_bytes() const {
  int64_t bytes = SizeOf(dtype);
  for (const int64_t d : shape) bytes *= d;
  return bytes;
}

std::string SafetensorsPrologue(std::span<const TensorEntry> tensors) {
  std::string header = "{";
  int64_t offset = 0;
  for (const TensorEntry& t : tensors) {
    std::string dims;
    for (const int64_t d : t.shape) dims += StrCat(dims.empty() ? "" : ",", d);
    const int64_t end = offset + t.num_bytes();
    header += StrCat(header.size() > 1 ? "," : "", QuoteJson(t.name), ":{\"dtype\":\"", NameOf(t.dtype),
                     "\",\"shape\":[", dims, "],\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string prologue(8, '\0');
  for (size_t i = 0; i < 8; ++i) prologue[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return prologue + header;
}

Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors) {
  std::vector<TensorEntry> entries;
  for (const TensorToWrite& t : tensors) {
    entries.push_back({t.name, t.dtype, t.shape});
    if (entries.back().num_bytes() != static_cast<int64_t>(t.bytes.size())) {
      std::string dims;
      for (const int64_t d : t.shape) dims += StrCat(dims.empty() ? "" : ",", d);
      return InvalidArgument(StrCat("cannot write '", path, "': tensor '", t.name, "' of shape [", dims, "] has ",
                                    t.bytes.size(), " bytes"));
    }
  }
  const std::string prologue = SafetensorsPrologue(entries);
  std::vector<std::string_view> pieces = {prologue};
  for (const TensorToWrite& t : tensors) {
    pieces.emplace_back(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  }
  return WriteFile(path, pieces);
}

Status WriteTensorFile(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<TensorToWrite> out;
  for (const NamedTensor& t : tensors) {
    const auto add = [&](auto values, DType dtype) {
      out.push_back({t.name, dtype, t.shape, {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()}});
    };
    if (const auto* f32 = std::get_if<std::span<const float>>(&t.values)) add(*f32, DType::kF32);
    if (const auto* i32 = std::get_if<std::span<const int32_t>>(&t.values)) add(*i32, DType::kI32);
  }
  return WriteSafetensors(path, out);
}

}  // namespace dsv4
