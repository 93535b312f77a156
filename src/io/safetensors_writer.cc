#include <cerrno>
#include <cstdio>
#include <cstring>

#include <unistd.h>

#include "base/str.h"
#include "dsv4/tensor_file.h"
#include "io/safetensors.h"

namespace dsv4 {

namespace {

// A file under a temporary name until it is complete.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path)
      : path_(std::move(path)),
        temporary_(StrCat(path_, ".tmp.", static_cast<int64_t>(::getpid()))),
        file_(std::fopen(temporary_.c_str(), "wb")) {}
  ~TemporaryFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (!done_) ::unlink(temporary_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  Status Write(const void* data, size_t size) {
    if (file_ == nullptr || std::fwrite(data, 1, size, file_) != size) return Failure();
    return {};
  }

  Status Finish() {
    if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) return Failure();
    const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
    if (!closed || std::rename(temporary_.c_str(), path_.c_str()) != 0) return Failure();
    done_ = true;
    return {};
  }

 private:
  Status Failure() const {
    const int error = errno;
    const std::string message = StrCat("cannot write '", path_, "': ", std::strerror(error));
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) return ResourceExhausted(message);
    return error == ENOENT || error == ENOTDIR ? NotFound(message) : InvalidArgument(message);
  }

  std::string path_;
  std::string temporary_;
  std::FILE* file_;
  bool done_ = false;
};

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

  TemporaryFile file(path);
  uint8_t length[8];
  for (size_t i = 0; i < 8; ++i)
    length[i] = static_cast<uint8_t>(static_cast<uint64_t>(header.size()) >> (8 * i));
  DSV4_RETURN_IF_ERROR(file.Write(length, sizeof(length)));
  DSV4_RETURN_IF_ERROR(file.Write(header.data(), header.size()));
  for (const TensorToWrite& t : tensors) DSV4_RETURN_IF_ERROR(file.Write(t.bytes.data(), t.bytes.size()));
  return file.Finish();
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
