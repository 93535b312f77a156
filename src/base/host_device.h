// Functions that a GPU's kernels call as well as the host.
#pragma once

#ifdef __CUDACC__
#define DSV4_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DSV4_HOST_DEVICE inline
#endif
