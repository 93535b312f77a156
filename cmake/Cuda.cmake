# The CUDA part takes more than half of a build, so AUTO leaves it out without a GPU. The default of a sub-project is OFF.
# Sets DSV4_HAVE_CUDA.
set(default OFF)
if(PROJECT_IS_TOP_LEVEL)
  set(default AUTO)
endif()
set(DSV4_CUDA ${default} CACHE STRING "Build the CUDA part: AUTO (if the machine has nvcc and a GPU), ON or OFF")
set_property(CACHE DSV4_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code only: PTX of an "a" target runs on no other chip. Also accepted: 103a-real, 120a-real. A parent project's
# CMAKE_CUDA_ARCHITECTURES belong to its own kernels.
set(DSV4_CUDA_ARCHITECTURES "" CACHE STRING
  "Architectures of the CUDA part (default: CMAKE_CUDA_ARCHITECTURES at top level, or 90a-real;100a-real)")
if(DSV4_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "${DSV4_CUDA_ARCHITECTURES}")  # in this folder and below
elseif(NOT PROJECT_IS_TOP_LEVEL OR NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "90a-real;100a-real")
endif()
set(DSV4_HAVE_CUDA OFF)
# The driver makes this file. A test sets another path.
set(DSV4_GPU_FILE /dev/nvidiactl CACHE FILEPATH "AUTO builds the CUDA part if this file exists")
mark_as_advanced(DSV4_GPU_FILE)
if(DSV4_CUDA STREQUAL "AUTO" AND NOT EXISTS "${DSV4_GPU_FILE}")
  message(STATUS "CUDA part: off, no GPU was found (${DSV4_GPU_FILE} is missing); -DDSV4_CUDA=ON builds it anyway")
elseif(NOT DSV4_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(DSV4_NVCC nvcc HINTS /usr/local/cuda/bin NO_CACHE)
    if(DSV4_NVCC)
      set(CMAKE_CUDA_COMPILER ${DSV4_NVCC})
    endif()
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
      message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old: install 12.8 or later, or configure with "
                          "-DDSV4_CUDA=OFF")
    endif()
    set(CMAKE_CUDA_STANDARD 20)  # must come after enable_language
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    # The program starts without CUDA libraries. dsv4_device links the static runtime, so that programs without the
    # language CUDA get it, too; CMake's own link of it would be a second one.
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    find_package(CUDAToolkit REQUIRED)
    set(DSV4_HAVE_CUDA ON)
    message(STATUS "CUDA part: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
  elseif(DSV4_CUDA STREQUAL "ON")
    message(FATAL_ERROR "DSV4_CUDA=ON but no CUDA compiler was found; set CMAKE_CUDA_COMPILER or CUDACXX")
  else()
    message(STATUS "CUDA part: off, nvcc was not found")
  endif()
endif()
