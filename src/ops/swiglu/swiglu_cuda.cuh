// SwiGLU of one element on the device, as in swiglu_ref.cc; a NaN stays a NaN.
#pragma once

#include <cuda_runtime.h>

namespace dsv4 {

__device__ __forceinline__ float SwigluValue(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;
  up = up < -limit ? -limit : (up > limit ? limit : up);
  return gate / (1.0f + expf(-gate)) * up;
}

}  // namespace dsv4
