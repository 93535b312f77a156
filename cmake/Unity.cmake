# Compiles several files of a target as one (a unity build). This halves a full build, because shared headers are parsed
# and templates are instantiated once per batch. Names in anonymous namespaces must therefore be unique within a target.
# The presets cpu and cpu-tsan compile every file alone, which finds missing includes.
set(DSV4_UNITY_BATCH_SIZE 8 CACHE STRING "Files compiled as one; 0: all files of a target")
set(CMAKE_UNITY_BUILD ${DSV4_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE ${DSV4_UNITY_BATCH_SIZE})

# dsv4_cuda_sources(RESULT ALONE): sets RESULT to the .cu files below the current folder, joined in the same way. CMake
# supports this itself since 3.31. A small file spends most of its time on the CUDA headers, for the host and for each
# architecture. Files that match the regex ALONE have kernels that take long to compile; they stay separate and compile
# in parallel.
function(dsv4_cuda_sources result alone)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
  set(single ${sources})
  if(DSV4_UNITY)
    list(FILTER single INCLUDE REGEX "${alone}")
    list(FILTER sources EXCLUDE REGEX "${alone}")
    set(batch 0)
    while(sources)
      set(text "")
      set(count 0)
      while(sources AND (count EQUAL 0 OR NOT count EQUAL DSV4_UNITY_BATCH_SIZE))
        list(POP_FRONT sources source)
        string(APPEND text "#include \"${source}\"\n")
        math(EXPR count "${count} + 1")
      endwhile()
      set(file ${CMAKE_CURRENT_BINARY_DIR}/Unity/unity_${batch}_cu.cu)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
      list(APPEND single ${file})
      math(EXPR batch "${batch} + 1")
    endwhile()
  endif()
  set_source_files_properties(${single} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set(${result} ${single} PARENT_SCOPE)
endfunction()
