// Token ids and logits between Python and C++.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "dsv4/engine.h"
#include "dsv4/types.h"

namespace dsv4::python {

namespace nb = nanobind;

// Reads a sequence of int, or an array of int32 or int64 with one axis on the CPU (NumPy, torch: DLPack). Throws
// TypeError, or InvalidArgumentError for a number outside int32.
std::vector<TokenId> ToIds(nb::handle ids);

nb::list ToList(const std::vector<TokenId>& ids);

// "last", "all" or "none".
LogitRows ToRows(const std::string& name);

// A NumPy array [rows, V] of float32 that owns the vector: nothing is copied.
nb::object ToArray(std::vector<float>&& logits, int64_t vocab_size);

// The memory of `out`, a writable array of float32 on the CPU, which must have rows * V values without gaps.
struct OutArray {
  float* data = nullptr;
  size_t size = 0;
};
OutArray ToOut(nb::handle out, int64_t rows, int64_t vocab_size);

}  // namespace dsv4::python
