// A Status as a Python exception.
#pragma once

#include <utility>

#include <nanobind/nanobind.h>

#include "dsv4/status.h"

namespace dsv4::python {

namespace nb = nanobind;

// Throws the exception of dsv4._errors that belongs to the code. Requires the GIL and an error.
[[noreturn]] void Raise(const Status& status);

// Throws dsv4.ForkError. `what` is the thing that belongs to another process.
[[noreturn]] void RaiseForked(const char* what);

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <typename T>
T Must(Result<T> result) {
  Check(result.status());
  return std::move(*result);
}

}  // namespace dsv4::python
