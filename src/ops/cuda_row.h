// The row of a GPU's kernels in an op's table. For <op>.cc only.
#pragma once

#include "ops/registry.h"

// First row of a table, by the names of the kernels. Builds without CUDA have the row and not the function, which is
// declared in any case.
#ifdef DSV4_HAVE_CUDA
#define DSV4_CUDA_ROW(function, kernels) {kernels, ::dsv4::SupportsCuda, function},
#else
#define DSV4_CUDA_ROW(function, kernels) {kernels, ::dsv4::SupportsCuda, nullptr},
#endif
