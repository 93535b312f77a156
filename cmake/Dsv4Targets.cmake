# Options shared by every target, and two helpers: dsv4_library and dsv4_test.

# Warnings are errors only with the compilers of Debian 12, which build every change. New or false warnings of other
# compilers, or of a parent project, do not stop a build.
set(judges OFF)
foreach(compiler "GNU 12" "Clang 14")
  if(PROJECT_IS_TOP_LEVEL AND "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" MATCHES "^${compiler}\\.")
    set(judges ON)
  endif()
endforeach()
option(DSV4_WERROR "Warnings are errors (default: with GCC 12 and Clang 14, not in a sub-project)" ${judges})
if(NOT DSV4_WERROR)
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
endif()
if("${CMAKE_CXX_FLAGS} " MATCHES "-m(arch|cpu|tune)=native ")
  message(STATUS "CMAKE_CXX_FLAGS has -march=native: the program will run on processors like this one only. The CPU "
                 "kernels need no such flag, they are compiled for each instruction set")
endif()

add_library(dsv4_options INTERFACE)
target_compile_features(dsv4_options INTERFACE cxx_std_20)
target_include_directories(dsv4_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# No contraction: a product and a sum become one FMA only if the source says so. Every code path that computes the same
# row then gives the same bits.
target_compile_options(dsv4_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual>"
  "$<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers;-ffp-contract=off>"
  # A parent project may have switched warnings to errors, and exceptions or type information off.
  "$<$<COMPILE_LANGUAGE:CXX>:$<IF:$<BOOL:${DSV4_WERROR}>,-Werror,-Wno-error>;-fexceptions;-frtti>"
  # Paths in the program are relative to the repository: two folders build the same bytes, and share ccache's results.
  "$<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>"
  # -Wrestrict: false alarms of GCC 12 and 13 in std::string (GCC bug 105651).
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-psabi;-Wno-restrict>"
  # GCC warns of classes with a member from an unnamed namespace in all files of a unity build except the first.
  "$<$<AND:$<BOOL:${DSV4_UNITY}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-Wno-subobject-linkage>"
  # nvcc's generated host code triggers -Wpedantic and -Wshadow. 2810: a false alarm at assignments to nodiscard
  # classes.
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extra-device-vectorization;-diag-suppress=2810>"
  "$<$<AND:$<BOOL:${DSV4_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings;-Xcompiler=-Werror>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers,-Wno-psabi,-ffp-contract=off>")
if(DSV4_SANITIZE)
  target_compile_options(dsv4_options INTERFACE -fsanitize=${DSV4_SANITIZE} -fno-omit-frame-pointer -g
    -fno-sanitize-recover=all)
  # Instrumented code causes false warnings (GCC 12: maybe-uninitialized in Boost.Beast; GCC 13: array-bounds in
  # std::vector), so warnings are errors only in the other builds.
  target_compile_options(dsv4_options INTERFACE -Wno-error)
  target_link_options(dsv4_options INTERFACE -fsanitize=${DSV4_SANITIZE})
endif()

# dsv4_library(NAME deps...): a static library of every .cc file (and, with CUDA, every .cu file) below the current
# folder.
function(dsv4_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(DSV4_HAVE_CUDA)
    dsv4_cuda_sources(cuda_sources "^$")
    list(APPEND sources ${cuda_sources})
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC dsv4_options ${ARGN})
endfunction()

# Tests spend their time in the libraries, and compiling the tests takes longer than running them. So they are optimised
# little, and a unity batch has twice the files (0, all files of a program, stays 0).
set(DSV4_TEST_OPTIONS $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-Og>)

# Headers that most tests include. They are compiled once for all test programs, except in builds that compile every file
# alone: those find missing includes.
set(DSV4_TEST_HEADERS <gmock/gmock.h> <gtest/gtest.h> <algorithm> <atomic> <chrono> <cmath> <filesystem> <fstream>
  <functional> <limits> <map> <memory> <numeric> <random> <set> <string> <thread> <vector>)

function(dsv4_precompile_tests target)
  if(DSV4_UNITY)
    if(NOT TARGET dsv4_test_headers)
      add_library(dsv4_test_headers OBJECT ${PROJECT_SOURCE_DIR}/tests/support/precompiled.cc)
      target_link_libraries(dsv4_test_headers PRIVATE dsv4_options GTest::gmock)
      target_compile_options(dsv4_test_headers PRIVATE ${DSV4_TEST_OPTIONS} -fPIE)   # as a program's files
      set_target_properties(dsv4_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
      target_precompile_headers(dsv4_test_headers PRIVATE ${DSV4_TEST_HEADERS})
    endif()
    target_precompile_headers(${target} REUSE_FROM dsv4_test_headers)
  endif()
endfunction()

# dsv4_test(FOLDER deps...): one test program of all *_test.cc files in and below the current folder. *_slow_test.cc
# files go into a second program with the label "slow". Slow tests begin first (COST), so that no long test runs alone
# at the end.
set(DSV4_COST_fast 0)
set(DSV4_COST_slow 10)
# Programs under a sanitizer take this many times as long.
set(DSV4_SLOWNESS 1)
if(DSV4_SANITIZE)
  set(DSV4_SLOWNESS 6)
endif()

# Tests named Cuda* need a GPU (tests/support/devices.h). ctest lists them only for the folder "cuda".
function(dsv4_test name)
  math(EXPR batch_size "2 * ${DSV4_UNITY_BATCH_SIZE}")
  set(filter "-Cuda*:*/Cuda*:Campaign*")
  if(name STREQUAL "cuda")
    set(filter "Cuda*:*/Cuda*")
  endif()
  file(GLOB_RECURSE fast_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  set(slow_sources ${fast_sources})
  list(FILTER fast_sources EXCLUDE REGEX "_slow_test\\.cc$")
  list(FILTER slow_sources INCLUDE REGEX "_slow_test\\.cc$")
  foreach(tier fast slow)
    if(${tier}_sources)
      add_executable(${name}_${tier}_tests ${${tier}_sources})
      target_link_libraries(${name}_${tier}_tests PRIVATE dsv4_options ${ARGN} GTest::gmock GTest::gtest_main)
      target_include_directories(${name}_${tier}_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests)
      target_compile_options(${name}_${tier}_tests PRIVATE ${DSV4_TEST_OPTIONS})
      dsv4_precompile_tests(${name}_${tier}_tests)
      set_target_properties(${name}_${tier}_tests PROPERTIES UNITY_BUILD_BATCH_SIZE ${batch_size})
      target_compile_definitions(${name}_${tier}_tests PRIVATE DSV4_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      math(EXPR timeout "900 * ${DSV4_SLOWNESS}")
      set(properties COST ${DSV4_COST_${tier}} TIMEOUT ${timeout} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
      gtest_discover_tests(${name}_${tier}_tests DISCOVERY_TIMEOUT 60 TEST_FILTER "${filter}"
        PROPERTIES LABELS ${tier} ${properties})
      if(tier STREQUAL "slow" AND NOT name STREQUAL "cuda")  # more seeds and fixtures, not in `usual`
        gtest_discover_tests(${name}_${tier}_tests DISCOVERY_TIMEOUT 60 TEST_FILTER "Campaign*"
          PROPERTIES LABELS campaign ${properties})
      endif()
    endif()
  endforeach()
endfunction()

# dsv4_server_suites(PREFIX THREADS SECONDS COST SUITE...): adds the scripts SUITE_test.py of the current folder. They
# start `dsv4 serve` with THREADS threads, which poll: two cores run two suites of one thread, or one suite of two.
# Under a sanitizer every suite has two threads. A suite without its model or package exits with 77 (skipped).
function(dsv4_server_suites prefix threads seconds cost)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)   # Debian: python3
  math(EXPR timeout "${seconds} * ${DSV4_SLOWNESS}")
  if(DSV4_SANITIZE)
    set(threads 2)
  endif()
  foreach(suite ${ARGN})
    add_test(NAME ${prefix}.${suite}
      COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/${suite}_test.py $<TARGET_FILE:dsv4>)
    set_tests_properties(${prefix}.${suite} PROPERTIES
      LABELS slow PROCESSORS ${threads} TIMEOUT ${timeout} SKIP_RETURN_CODE 77 COST ${cost}
      ENVIRONMENT "DSV4_TEST_SLOWNESS=${DSV4_SLOWNESS};DSV4_TEST_THREADS=${threads}")
  endforeach()
endfunction()
