# The grammars of structured output: XGrammar's C++ core, from the source package that scripts/setup unpacks into
# build/deps. Without it the rest is built, and the server refuses structured output.
set(DSV4_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/build/deps/xgrammar CACHE PATH "XGrammar's source package")
option(DSV4_REQUIRE_XGRAMMAR "Stop if XGrammar is missing" OFF)
set(DSV4_HAVE_XGRAMMAR OFF)
if(EXISTS ${DSV4_XGRAMMAR_DIR}/include/xgrammar/xgrammar.h)
  set(DSV4_HAVE_XGRAMMAR ON)
  # XGrammar's own CMake project needs Python bindings, -Werror and link-time optimisation, so it is not used.
  file(GLOB xgrammar_sources ${DSV4_XGRAMMAR_DIR}/cpp/*.cc ${DSV4_XGRAMMAR_DIR}/cpp/converter_ext/*.cc
    ${DSV4_XGRAMMAR_DIR}/cpp/support/*.cc)
  # The schema compiler takes long to build, so it is optimised little. The files that run at every token are optimised.
  set(xgrammar_hot ${xgrammar_sources})
  list(FILTER xgrammar_hot INCLUDE REGEX "/(grammar_matcher|earley_parser|compiled_grammar)\\.cc$")
  list(REMOVE_ITEM xgrammar_sources ${xgrammar_hot})
  add_library(dsv4_xgrammar_matcher OBJECT EXCLUDE_FROM_ALL ${xgrammar_hot})
  add_library(dsv4_xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources} $<TARGET_OBJECTS:dsv4_xgrammar_matcher>)
  foreach(target dsv4_xgrammar dsv4_xgrammar_matcher)
    target_include_directories(${target} SYSTEM PUBLIC ${DSV4_XGRAMMAR_DIR}/include
      ${DSV4_XGRAMMAR_DIR}/3rdparty/dlpack/include)
    target_include_directories(${target} SYSTEM PRIVATE ${DSV4_XGRAMMAR_DIR}/3rdparty/picojson)
    target_compile_features(${target} PRIVATE cxx_std_17)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      # Its variants name incomplete types, which Clang accepts in C++17 only.
      set_target_properties(${target} PROPERTIES CXX_STANDARD 17)
    endif()
    target_compile_definitions(${target} PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
      XGRAMMAR_LOG_CUSTOMIZE=1)
    target_compile_options(${target} PRIVATE -w -fexceptions -frtti -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
    if(DSV4_SANITIZE)
      target_compile_options(${target} PRIVATE -fsanitize=${DSV4_SANITIZE} -fno-omit-frame-pointer)
    endif()
  endforeach()
  target_compile_options(dsv4_xgrammar PRIVATE $<$<CONFIG:Release>:-O1>)
  # Its names clash with names of another file in a unity build.
  set_source_files_properties(${DSV4_XGRAMMAR_DIR}/cpp/json_schema_converter.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
elseif(DSV4_REQUIRE_XGRAMMAR)
  message(FATAL_ERROR "${DSV4_XGRAMMAR_DIR} has no XGrammar: run scripts/fetch_xgrammar, or set DSV4_REQUIRE_XGRAMMAR "
                      "to OFF for a server without structured output")
else()
  message(STATUS "Structured output: off, ${DSV4_XGRAMMAR_DIR} has no XGrammar. scripts/setup fetches it.")
endif()
