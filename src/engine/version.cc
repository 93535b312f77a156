#include "dsv4/version.h"

#include "base/str.h"
#include "device/cpu_features.h"
#include "device/device.h"
#include "dsv4_commit.h"  // written by version.cmake at build time

namespace dsv4 {

BuildInfo GetBuildInfo() {
#if defined(__clang__)
  const std::string compiler = "Clang " __clang_version__;
#else
  const std::string compiler = StrCat("GCC ", __GNUC__, ".", __GNUC_MINOR__, ".", __GNUC_PATCHLEVEL__);
#endif
  return {.version = DSV4_VERSION,
          .commit = DSV4_COMMIT,
          .compiler = compiler,
          .build_type = DSV4_BUILD_TYPE,
          .cpu_features = CpuFeatureList(),
          .compiled_features = DSV4_KERNEL_SETS,
          .gpu_architectures = CompiledGpuArchitectures()};
}

}  // namespace dsv4
