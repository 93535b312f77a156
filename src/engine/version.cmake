# The facts that version.cc reports. Included after dsv4_engine is defined. With -P it is the build-time step that writes
# the commit into a header, and only when the commit has changed.
if(CMAKE_SCRIPT_MODE_FILE)
  if(COMMIT)
    set(commit ${COMMIT})
    set(status 0)
  else()
    execute_process(COMMAND git --no-optional-locks describe --always --dirty --abbrev=10 --exclude=*
      WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
      RESULT_VARIABLE status)
  endif()
  if(NOT status EQUAL 0)
    set(commit unknown)
  endif()
  file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define DSV4_COMMIT \"${commit}\"\n")
else()
  set(DSV4_COMMIT "" CACHE STRING "Commit that dsv4 --version names (default: git describe)")
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
  add_custom_target(dsv4_commit_header BYPRODUCTS ${generated}/dsv4_commit.h
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DCOMMIT=${DSV4_COMMIT} -DOUTPUT=${generated}/dsv4_commit.h
            -P ${CMAKE_CURRENT_LIST_DIR}/version.cmake)
  add_dependencies(dsv4_engine dsv4_commit_header)
  target_include_directories(dsv4_engine PRIVATE ${generated})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(kernel_sets "generic avx2 avx512 avx512vnni amx")  # as in src/ops/CMakeLists.txt
  else()
    set(kernel_sets "generic")
  endif()
  set_source_files_properties(version.cc PROPERTIES COMPILE_DEFINITIONS
    "DSV4_VERSION=\"${PROJECT_VERSION}\";DSV4_BUILD_TYPE=\"${CMAKE_BUILD_TYPE}\";DSV4_KERNEL_SETS=\"${kernel_sets}\"")
endif()
