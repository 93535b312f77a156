// The input is a safetensors file. The parser refuses it with one line, or every tensor is inside the file.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "base/check.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = dsv4::ParseSafetensors({data, size}, "FILE");
  if (!header.ok()) {
    DSV4_CHECK(header.status().message().find('\n') == std::string::npos);
    return 0;
  }
  for (const dsv4::FileTensor& t : header->tensors) {
    DSV4_CHECK(!t.name.empty());
    DSV4_CHECK(t.num_bytes >= 0 && t.data >= data && t.data + t.num_bytes <= data + size, t.name);
    if (t.dtype_known) DSV4_CHECK_EQ(t.shape.num_elements() * SizeOf(t.dtype), t.num_bytes);
    unsigned sum = 0;
    for (int64_t i = 0; i < t.num_bytes; ++i) sum += t.data[i];
    if (sum == 0xffffffffU) std::abort();  // keeps the compiler from removing the reads
  }
  return 0;
}
