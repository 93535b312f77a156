// The service (continuous batching) and its requests for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace dsv4::python {

void BindService(nanobind::module_& m);

}  // namespace dsv4::python
