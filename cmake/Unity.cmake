# Several files of a target compiled as one: half of a build from nothing was the parsing of headers that they share, and
# templates that each of them instantiated anew. Names in anonymous namespaces differ within a target for it. The
# presets cpu and cpu-tsan compile every file alone, so that one that does not include what it uses is still found.
set(CMAKE_UNITY_BUILD ${DSV4_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8 CACHE STRING "Files compiled as one; 0: all of a target")

# dsv4_cuda_sources(RESULT ALONE): the .cu files below the current folder, joined in the same way, which CMake does by
# itself from 3.31 on: most of a small file's time is the CUDA headers', for the host and for each architecture. Files
# that match ALONE, whose kernels take long by themselves, stay alone, so that they use the cores of a machine with many.
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
      while(sources AND (count EQUAL 0 OR NOT count EQUAL CMAKE_UNITY_BUILD_BATCH_SIZE))
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
