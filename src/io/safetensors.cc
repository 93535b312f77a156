#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "base/file.h"
#include "base/str.h"
#include "io/json_reader.h"
#include "io/name_table.h"

namespace dsv4 {

namespace {

constexpr size_t kMaxNameBytes = 1024;

std::optional<DType> DTypeFromName(std::string_view name) {
  constexpr std::array kAll = {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E4M3, DType::kF8E8M0,
                               DType::kU8,  DType::kI8,   DType::kI32, DType::kI64};
  for (const DType t : kAll) {
    if (NameOf(t) == name) return t;
  }
  return std::nullopt;
}

// Names must be plain text, because they appear in one-line messages and in JSON.
bool IsPlainText(std::string_view s) {
  return !s.empty() && s.size() <= kMaxNameBytes &&
         std::all_of(s.begin(), s.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

class HeaderParser {
 public:
  HeaderParser(std::span<const uint8_t> bytes, std::string_view what) : bytes_(bytes), what_(what) {}

  Result<SafetensorsHeader> Parse() {
    DSV4_RETURN_IF_ERROR(FindHeader());
    DSV4_RETURN_IF_ERROR(ReadEntries());
    DSV4_RETURN_IF_ERROR(CheckNames());
    DSV4_RETURN_IF_ERROR(CheckOverlaps());
    return std::move(header_);
  }

 private:
  Status FindHeader() {
    const auto size = static_cast<uint64_t>(bytes_.size());
    if (IsLfsPointer({reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}))
      return DataLoss(StrCat("'", what_, "' is ", kFetchFromLfs));
    if (size < 8) return DataLoss(StrCat("'", what_, "': ", size, " bytes are too few for a safetensors file"));
    uint64_t length = 0;
    for (size_t i = 0; i < 8; ++i) length |= static_cast<uint64_t>(bytes_[i]) << (8 * i);
    if (length > size - 8) {
      return DataLoss(StrCat("'", what_, "': the header claims ", length, " bytes, but the file has only ", size,
                             " (truncated, or not a safetensors file)"));
    }
    if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
      return DataLoss(
          StrCat("'", what_, "': a header of ", length, " bytes; the limit is ", kMaxSafetensorsHeaderBytes));
    }
    text_ = {reinterpret_cast<const char*>(bytes_.data()) + 8, static_cast<size_t>(length)};
    data_ = bytes_.subspan(8 + static_cast<size_t>(length));
    return {};
  }

  Status Broken(const JsonReader& reader, std::string_view expected) const {
    return DataLoss(StrCat("'", what_, "': header broken at byte ", reader.offset() + 8, ": expected ", expected));
  }

  Status ReadEntries() {
    header_.tensors.reserve(text_.size() / 96);
    JsonReader reader(text_);
    if (!reader.Consume('{')) return Broken(reader, "'{'");
    if (!reader.Consume('}')) {
      do {
        std::string_view name;
        if (!reader.ReadString(name, header_.unescaped)) return Broken(reader, "a tensor name");
        if (!reader.Consume(':')) return Broken(reader, "':'");
        if (name == "__metadata__") {
          if (!reader.SkipValue()) return Broken(reader, "a value");
          continue;
        }
        if (!IsPlainText(name)) {
          return DataLoss(StrCat("'", what_, "': a tensor name near header byte ", reader.offset(),
                                 " is empty, too long or not printable ASCII"));
        }
        DSV4_RETURN_IF_ERROR(ReadEntry(reader, name));
      } while (reader.Consume(','));
      if (!reader.Consume('}')) return Broken(reader, "',' or '}'");
    }
    if (!reader.AtEnd()) return Broken(reader, "the end of the header");
    return {};
  }

  // {"dtype": "BF16", "shape": [4096, 1024], "data_offsets": [0, 8388608]}, fields in any order.
  Status ReadEntry(JsonReader& reader, std::string_view name) {
    FileTensor tensor;
    tensor.name = name;
    int64_t begin = 0, end = 0;
    bool has_dtype = false, has_shape = false, has_offsets = false;
    if (!reader.Consume('{')) return Broken(reader, "'{'");
    do {
      std::string_view field;
      if (!reader.ReadString(field, header_.unescaped)) return Broken(reader, "a field name");
      if (!reader.Consume(':')) return Broken(reader, "':'");
      if (field == "dtype" && !std::exchange(has_dtype, true)) {
        if (!reader.ReadString(tensor.dtype_name, header_.unescaped) || !IsPlainText(tensor.dtype_name)) {
          return Broken(reader, "a dtype");
        }
      } else if (field == "shape" && !std::exchange(has_shape, true)) {
        DSV4_RETURN_IF_ERROR(ReadShape(reader, tensor));
      } else if (field == "data_offsets" && !std::exchange(has_offsets, true)) {
        if (!reader.Consume('[') || !reader.ReadCount(begin) || !reader.Consume(',') || !reader.ReadCount(end) ||
            !reader.Consume(']')) {
          return Broken(reader, "two offsets");
        }
      } else {
        return DataLoss(StrCat("'", what_, "': tensor '", name,
                               "' has a field that is not dtype, shape or data_offsets, or one of them twice"));
      }
    } while (reader.Consume(','));
    if (!reader.Consume('}')) return Broken(reader, "',' or '}'");
    if (!has_dtype || !has_shape || !has_offsets) {
      return DataLoss(StrCat("'", what_, "': tensor '", name, "' lacks ",
                             !has_dtype   ? "dtype"
                             : !has_shape ? "shape"
                                          : "data_offsets"));
    }
    return Place(tensor, begin, end);
  }

  Status ReadShape(JsonReader& reader, FileTensor& tensor) const {
    if (!reader.Consume('[')) return Broken(reader, "a shape");
    if (reader.Consume(']')) return {};
    do {
      int64_t dim = 0;
      if (!reader.ReadCount(dim)) return Broken(reader, "a dimension");
      if (tensor.shape.rank() == Shape::kMaxRank) {
        return DataLoss(StrCat("'", what_, "': tensor '", tensor.name, "' has more than ", Shape::kMaxRank, " axes"));
      }
      tensor.shape.Append(dim);
    } while (reader.Consume(','));
    if (!reader.Consume(']')) return Broken(reader, "',' or ']'");
    return {};
  }

  // Checks the byte range against the file, and the shape against the range.
  Status Place(FileTensor& tensor, int64_t begin, int64_t end) {
    const auto size = static_cast<int64_t>(data_.size());
    if (begin > end || end > size) {
      return DataLoss(StrCat("'", what_, "': tensor '", tensor.name, "' is at bytes ", begin, " to ", end,
                             ", but the file holds ", size, " bytes of data (truncated?)"));
    }
    tensor.data = data_.data() + begin;
    tensor.num_bytes = end - begin;
    if (const auto dtype = DTypeFromName(tensor.dtype_name)) {
      tensor.dtype = *dtype;
      tensor.dtype_known = true;
      if (!HasBytes(tensor.shape, SizeOf(*dtype), tensor.num_bytes)) {
        return DataLoss(StrCat("'", what_, "': tensor '", tensor.name, "' of type ", tensor.dtype_name, " and shape ",
                               tensor.shape.ToString(), " does not fill its ", tensor.num_bytes, " bytes"));
      }
    }
    header_.tensors.push_back(tensor);
    return {};
  }

  // Whether shape x element_bytes equals `num_bytes`, for dimensions of any size.
  static bool HasBytes(const Shape& shape, int64_t element_bytes, int64_t num_bytes) {
    bool empty = false;
    for (int i = 0; i < shape.rank(); ++i) empty |= shape[i] == 0;
    if (empty) return num_bytes == 0;
    int64_t product = element_bytes;
    for (int i = 0; i < shape.rank(); ++i) {
      if (__builtin_mul_overflow(product, shape[i], &product)) return false;
    }
    return product == num_bytes;
  }

  Status CheckNames() const {
    NameTable names(header_.tensors.size());
    for (size_t i = 0; i < header_.tensors.size(); ++i) {
      if (names.Insert(header_.tensors[i].name, static_cast<int32_t>(i)) >= 0) {
        return DataLoss(StrCat("'", what_, "': tensor '", header_.tensors[i].name, "' occurs twice"));
      }
    }
    return {};
  }

  Status CheckOverlaps() const {
    const auto& tensors = header_.tensors;
    std::vector<uint32_t> order(tensors.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return tensors[a].data < tensors[b].data; });
    const FileTensor* last = nullptr;  // the tensor with the largest end so far
    for (const uint32_t i : order) {
      const FileTensor& tensor = tensors[i];
      if (tensor.num_bytes == 0) continue;
      if (last != nullptr && tensor.data < last->data + last->num_bytes) {
        return DataLoss(StrCat("'", what_, "': tensors '", last->name, "' and '", tensor.name, "' overlap"));
      }
      last = &tensor;
    }
    return {};
  }

  std::span<const uint8_t> bytes_;
  std::string_view what_;
  std::string_view text_;          // the JSON
  std::span<const uint8_t> data_;  // the bytes after it
  SafetensorsHeader header_;
};

}  // namespace

Result<SafetensorsHeader> ParseSafetensors(std::span<const uint8_t> bytes, std::string_view what) {
  return HeaderParser(bytes, what).Parse();
}

}  // namespace dsv4
