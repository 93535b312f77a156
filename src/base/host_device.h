// Functions for both the host and a GPU's kernels.
#pragma once

#ifdef __CUDACC__
#define DSV4_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DSV4_HOST_DEVICE inline
#endif
