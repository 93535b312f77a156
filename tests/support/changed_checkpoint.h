// A copy of a checkpoint with changed tensors or config.
#pragma once

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/tensor_source.h"
#include "io/test_files.h"

namespace dsv4::test {

// Writes the checkpoint of `from`, after `change`, into the folder `to`.
inline void WriteChanged(const std::string& from, const std::string& to,
                         const std::function<void(std::vector<TestTensor>&, Json&)>& change) {
  const auto source = TensorSource::Open(from);
  ASSERT_TRUE(source.ok()) << source.status().message();
  std::vector<TestTensor> tensors;
  for (const FileTensor& t : (*source)->tensors()) {
    std::vector<int64_t> shape;
    for (int i = 0; i < t.shape.rank(); ++i) shape.push_back(t.shape[i]);
    tensors.push_back({std::string(t.name), t.dtype, std::move(shape),
                       std::string(reinterpret_cast<const char*>(t.data), static_cast<size_t>(t.num_bytes))});
  }
  auto config = ReadJsonFile(from + "/config.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  change(tensors, *config);
  WriteTensors(to + "/model.safetensors", tensors);
  WriteBytes(to + "/config.json", config->dump());
}

inline TestTensor& TensorNamed(std::vector<TestTensor>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const TestTensor& t) { return t.name == name; });
}

// The tensor with its rows in reverse order.
inline TestTensor Reversed(TestTensor tensor) {
  const size_t row = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
  std::string reversed;
  for (size_t at = tensor.bytes.size(); at > 0; at -= row) reversed += tensor.bytes.substr(at - row, row);
  tensor.bytes = std::move(reversed);
  return tensor;
}

}  // namespace dsv4::test
