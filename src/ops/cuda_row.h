// The row of the GPU kernels in an op's table. For <op>.cc only.
#pragma once

#include "ops/registry.h"

// The first row of a table, with the names of the kernels. A build without CUDA has the row but not the function; the
// function is always declared.
#ifdef DSV4_HAVE_CUDA
#define DSV4_CUDA_ROW(function, kernels) {kernels, ::dsv4::SupportsCuda, function},
#else
#define DSV4_CUDA_ROW(function, kernels) {kernels, ::dsv4::SupportsCuda, nullptr},
#endif
