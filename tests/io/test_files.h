// Files for tests: a folder that is removed, and safetensors files written byte by byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "io/safetensors.h"

namespace dsv4::test {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dsv4-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline void WriteBytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Header length, header and data, without checks.
inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i)));
  return bytes.append(header).append(data);
}

// A tensor that owns its bytes.
struct TestTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline void WriteTensors(const std::string& path, const std::vector<TestTensor>& tensors) {
  std::vector<TensorToWrite> out;
  for (const TestTensor& t : tensors) {
    out.push_back({t.name, t.dtype, t.shape, {reinterpret_cast<const uint8_t*>(t.bytes.data()), t.bytes.size()}});
  }
  const Status status = WriteSafetensors(path, out);
  ASSERT_TRUE(status.ok()) << status.message();
}

}  // namespace dsv4::test
