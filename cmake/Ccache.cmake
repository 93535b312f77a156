# Compiles through ccache if it is installed and no launcher is set. Include before the first target.
option(DSV4_CCACHE "Compile through ccache if it is installed" ON)
if(DSV4_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(DSV4_CCACHE_PROGRAM ccache)
  if(DSV4_CCACHE_PROGRAM)
    # ccache keeps files with a precompiled header only with these settings (its manual, "Precompiled headers").
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${DSV4_CCACHE_PROGRAM})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${DSV4_CCACHE_PROGRAM})
  endif()
endif()
