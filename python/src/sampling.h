// Sampling for Python.
#pragma once

#include <string>

#include <nanobind/nanobind.h>

#include "dsv4/sampling.h"

namespace dsv4::python {

namespace nb = nanobind;

// Reads fields[name], if it is set, into `value`. Throws TypeError, which names the field.
template <typename T>
void Take(const nb::dict& fields, const char* name, T* value) {
  if (!fields.contains(name)) return;
  if (!nb::try_cast(nb::object(fields[name]), *value)) {
    throw nb::type_error((std::string(name) + " has a wrong type or is out of range").c_str());
  }
}

// Reads what dsv4.SamplingParams.request() returns.
SamplingParams ToSampling(const nb::dict& fields);

void BindSampling(nb::module_& m);

}  // namespace dsv4::python
