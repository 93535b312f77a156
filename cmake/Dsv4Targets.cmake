# Options shared by every target, and two helpers: dsv4_library and dsv4_test.

add_library(dsv4_options INTERFACE)
target_compile_features(dsv4_options INTERFACE cxx_std_20)
target_include_directories(dsv4_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# No contraction: a product and a sum become one FMA only where the source says so, so that every code path that
# computes the same row gives the same bits.
target_compile_options(dsv4_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers -Werror -ffp-contract=off
  # -Wrestrict: false alarms of GCC 12 and 13 in std::string (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi -Wno-restrict>)
if(DSV4_SANITIZE)
  target_compile_options(dsv4_options INTERFACE -fsanitize=${DSV4_SANITIZE} -fno-omit-frame-pointer -g
    -fno-sanitize-recover=all)
  target_link_options(dsv4_options INTERFACE -fsanitize=${DSV4_SANITIZE})
endif()

# dsv4_library(NAME deps...): a static library of every .cc file below the current folder.
function(dsv4_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC dsv4_options ${ARGN})
endfunction()

# dsv4_test(FOLDER label deps...): one test program of every *_test.cc in the current folder (below it, too);
# *_slow_test.cc files go into a second program with the label "slow".
function(dsv4_test name)
  file(GLOB_RECURSE fast_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  set(slow_sources ${fast_sources})
  list(FILTER fast_sources EXCLUDE REGEX "_slow_test\\.cc$")
  list(FILTER slow_sources INCLUDE REGEX "_slow_test\\.cc$")
  foreach(tier fast slow)
    if(${tier}_sources)
      add_executable(${name}_${tier}_tests ${${tier}_sources})
      target_link_libraries(${name}_${tier}_tests PRIVATE dsv4_options ${ARGN} GTest::gmock GTest::gtest_main)
      target_include_directories(${name}_${tier}_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests)
      target_compile_definitions(${name}_${tier}_tests PRIVATE DSV4_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      gtest_discover_tests(${name}_${tier}_tests DISCOVERY_TIMEOUT 60
        PROPERTIES LABELS ${tier} TIMEOUT 900 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    endif()
  endforeach()
endfunction()
