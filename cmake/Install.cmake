# What `cmake --install` puts where. Components: runtime (the program, licences) and nano (the bundled model).
include(GNUInstallDirs)

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
