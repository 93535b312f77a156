// Version and build of the library.
#pragma once

#include <string>

#include "dsv4/export.h"

namespace dsv4 {

struct BuildInfo {
  std::string version;            // "0.2.0"
  std::string commit;             // abbreviated; "-dirty" with uncommitted changes; "unknown" outside git
  std::string compiler;           // "GCC 12.2.0"
  std::string build_type;         // "Release"
  std::string cpu_features;       // instruction sets of this CPU that the engine can use
  std::string compiled_features;  // instruction sets that kernels were compiled for
  std::string gpu_architectures;  // "sm_90a sm_100a"; empty: built without CUDA. Only sm_90a has been run
};

DSV4_API BuildInfo GetBuildInfo();

}  // namespace dsv4
