// The tokenizer and the chat encoding for Python.
#pragma once

#include <memory>

#include <nanobind/nanobind.h>

#include "dsv4/tokenizer.h"

namespace dsv4::python {

namespace nb = nanobind;

struct PyTokenizer {
  std::shared_ptr<const Tokenizer> tokenizer;
};

void BindText(nb::module_& m);

}  // namespace dsv4::python
