# Headers of the standard library and of other packages, precompiled once for many targets: half of a build from nothing
# was their parsing. Our own headers are never among them, and the development presets build without, so that a file
# that does not include what it uses is still found.

# Out of precompiled headers the false alarms of -Wrestrict (Dsv4Targets.cmake) come under this name (GCC bug 105329).
# An interface of its own, so that it stands behind -Wall.
add_library(dsv4_precompiled_options INTERFACE)
target_compile_options(dsv4_precompiled_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overflow>)

# dsv4_precompile(TARGET library|tests): what static libraries share (-fPIC), or test programs (-fPIE).
function(dsv4_precompile target group)
  if(NOT DSV4_PRECOMPILE)
    return()
  endif()
  set(owner dsv4_${group}_headers)
  if(NOT TARGET ${owner})
    set(headers <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <limits> <memory> <span> <string>
      <string_view> <utility> <vector> <nlohmann/json.hpp>)
    set(source ${PROJECT_BINARY_DIR}/generated/${owner}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
    if(group STREQUAL "tests")
      list(APPEND headers <gmock/gmock.h> <gtest/gtest.h>)
      add_executable(${owner} ${source})
      target_link_libraries(${owner} PRIVATE GTest::gmock)
      target_compile_options(${owner} PRIVATE ${DSV4_TEST_OPTIONS})
    else()
      add_library(${owner} OBJECT ${source})
    endif()
    target_link_libraries(${owner} PRIVATE dsv4_options nlohmann_json::nlohmann_json)
    target_precompile_headers(${owner} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
  target_link_libraries(${target} PRIVATE dsv4_precompiled_options)
endfunction()
