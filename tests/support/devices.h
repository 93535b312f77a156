// One set of cases for every device. DSV4_DEVICE_TEST(Suite, Name) {...} defines two tests: Suite.Name on the CPU and
// CudaSuite.Name on the GPU (skipped if there is none). The body runs for each, with the device as `on`:
//
//   void RopeOnGpu(const ExecContext&, const RopeArgs& a) {  // the same call, operands in the GPU's memory
//     Mirror gpu;
//     Rope(gpu.ctx(), {.x = gpu.Out(a.x), .cos_sin = gpu.In(a.cos_sin), .inverse = a.inverse});
//     gpu.Finish();
//   }
//   DSV4_DEVICE_TEST(Rope, DoesWhatItSays) {
//     for (const auto& at : Places(on, Rope, RopeOnGpu)) at.run({.x = x.tensor(), ...});
//   }
//
// Suite.* belongs to the program of its folder, CudaSuite.* to cuda_fast_tests (tests/cuda/CMakeLists.txt).
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/contexts.h"
#include "support/cuda_mirror.h"

namespace dsv4::test {

enum class On { kCpu, kGpu };

template <typename Args>
using OpFn = void (*)(const ExecContext& ctx, const Args& args);

template <typename Args>
struct Place {
  std::string name;
  ExecContext ctx;
  OpFn<Args> op;

  void run(const Args& args) const { op(ctx, args); }
};

// The runs of a case: on the CPU in each of AllContexts(), on the GPU through `on_gpu`.
template <typename Args>
std::vector<Place<Args>> Places(On on, OpFn<Args> op, OpFn<Args> on_gpu) {
  if (on == On::kGpu) return {{"GPU", {}, on_gpu}};
  std::vector<Place<Args>> places;
  for (const NamedContext& c : AllContexts()) places.push_back({c.name, c.ctx, op});
  return places;
}

}  // namespace dsv4::test

#define DSV4_DEVICE_TEST(Suite, Name)                        \
  void Suite##Name(::dsv4::test::On on);                     \
  TEST(Suite, Name) { Suite##Name(::dsv4::test::On::kCpu); } \
  TEST(Cuda##Suite, Name) {                                  \
    DSV4_GPU_OR_SKIP();                                      \
    Suite##Name(::dsv4::test::On::kGpu);                     \
  }                                                          \
  void Suite##Name([[maybe_unused]] ::dsv4::test::On on)
