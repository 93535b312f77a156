# What `cmake --install` puts where. Components: runtime (the program, libdsv4.so.N, licences), development (headers,
# libraries, files for CMake and pkg-config) and nano (the bundled model). No installed file has an absolute path, so a
# prefix can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(DSV4_BUILD_CLI)
  install(TARGETS dsv4 COMPONENT runtime)
endif()
set(generated ${PROJECT_BINARY_DIR}/install)
set(grammars "")
if(DSV4_HAVE_XGRAMMAR)
  set(grammars ${DSV4_XGRAMMAR_DIR})
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -DXGRAMMAR=${grammars} -DOUTPUT=${generated}/THIRD-PARTY
  -P ${CMAKE_CURRENT_LIST_DIR}/third_party.cmake COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE ${generated}/THIRD-PARTY
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/dsv4 COMPONENT runtime)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/nano DESTINATION ${CMAKE_INSTALL_DATADIR}/dsv4/models COMPONENT nano OPTIONAL)

if(DSV4_BUILD_LIBRARY)
  # Optional: a build of the program alone can be installed.
  install(TARGETS dsv4_shared dsv4_static EXPORT dsv4Targets OPTIONAL
    LIBRARY COMPONENT development
    ARCHIVE COMPONENT development
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(CODE "if(NOT EXISTS \"${PROJECT_BINARY_DIR}/lib/libdsv4.a\")
    message(STATUS \"libdsv4 is not installed, it was not built: cmake --build ${PROJECT_BINARY_DIR} --target libdsv4\")
  endif()" COMPONENT development)
  set(no_headers PATTERN "*.in" EXCLUDE)
  if(NOT DSV4_BUILD_SERVER)
    list(APPEND no_headers PATTERN server.h EXCLUDE PATTERN service.h EXCLUDE PATTERN dsv4.h EXCLUDE)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
    FILES_MATCHING PATTERN "*.h" ${no_headers})

  set(package ${CMAKE_INSTALL_LIBDIR}/cmake/dsv4)
  configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/install/dsv4Config.cmake.in ${generated}/dsv4Config.cmake
    INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
  # C++ has no stable ABI: the headers belong to one minor version.
  write_basic_package_version_file(${generated}/dsv4ConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${generated}/dsv4Config.cmake ${generated}/dsv4ConfigVersion.cmake DESTINATION ${package}
    COMPONENT development)
  install(EXPORT dsv4Targets NAMESPACE dsv4:: DESTINATION ${package} COMPONENT development)

  file(RELATIVE_PATH DSV4_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" DSV4_PC_PREFIX "${DSV4_PC_PREFIX}")
  configure_file(${CMAKE_CURRENT_LIST_DIR}/install/dsv4.pc.in ${generated}/dsv4.pc @ONLY)
  install(FILES ${generated}/dsv4.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endif()
