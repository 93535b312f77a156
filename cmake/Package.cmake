# Files that are installed with the program, and packages (scripts/package): .deb and .tar.gz from the same install rules.
# Component "runtime" is the package dsv4, or dsv4-cuda; component "nano" is the package dsv4-nano.
include(GNUInstallDirs)
set(DSV4_PACKAGE_NAME dsv4)
if(DSV4_HAVE_CUDA)
  set(DSV4_PACKAGE_NAME dsv4-cuda)
endif()
set(DSV4_MAINTAINER "dsv4 maintainers <maintainers@dsv4.invalid>" CACHE STRING "Maintainer of the packages")

# The unit has whole paths: a prefix other than /usr/local is chosen when the build is configured.
set(DSV4_INSTALL_BINDIR ${CMAKE_INSTALL_FULL_BINDIR})
set(DSV4_INSTALL_DATADIR ${CMAKE_INSTALL_FULL_DATADIR})
configure_file(${PROJECT_SOURCE_DIR}/deploy/dsv4.service.in ${PROJECT_BINARY_DIR}/deploy/dsv4.service @ONLY)

# Manual pages, completions and changelogs are made when they are installed: the program writes them.
set(made ${PROJECT_BINARY_DIR}/package)
set(share ${CMAKE_INSTALL_DATADIR})
set(package_runtime ${DSV4_PACKAGE_NAME})
set(package_nano dsv4-nano)
foreach(component runtime nano)
  install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" \"-DPROGRAM=$<TARGET_FILE:dsv4>\" -DCOMPONENT=${component}
    \"-DCHANGELOG=${PROJECT_SOURCE_DIR}/CHANGELOG.md\" -DPACKAGE=${package_${component}} -DVERSION=${PROJECT_VERSION}
    \"-DMAINTAINER=${DSV4_MAINTAINER}\" \"-DOUTPUT=${made}/${component}\"
    -P \"${CMAKE_CURRENT_LIST_DIR}/package_files.cmake\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${component})
  install(FILES ${made}/${component}/changelog.gz ${made}/${component}/changelog.Debian.gz
    ${PROJECT_SOURCE_DIR}/deploy/debian/copyright DESTINATION ${share}/doc/${package_${component}} COMPONENT ${component})
endforeach()
set(completions ${made}/runtime/completions)
install(FILES ${completions}/bash DESTINATION ${share}/bash-completion/completions RENAME dsv4 COMPONENT runtime)
install(FILES ${completions}/zsh DESTINATION ${share}/zsh/vendor-completions RENAME _dsv4 COMPONENT runtime)
install(FILES ${completions}/fish DESTINATION ${share}/fish/vendor_completions.d RENAME dsv4.fish COMPONENT runtime)
install(DIRECTORY ${made}/runtime/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT runtime)
install(FILES ${PROJECT_BINARY_DIR}/deploy/dsv4.service DESTINATION lib/systemd/system COMPONENT runtime)
configure_file(${PROJECT_SOURCE_DIR}/deploy/debian/lintian-overrides.in ${made}/lintian-overrides @ONLY)
install(FILES ${made}/lintian-overrides DESTINATION ${share}/lintian/overrides RENAME ${DSV4_PACKAGE_NAME}
  COMPONENT runtime)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/gpu.conf DESTINATION ${share}/doc/${DSV4_PACKAGE_NAME}/examples
  COMPONENT runtime)

set(CPACK_PACKAGE_NAME ${DSV4_PACKAGE_NAME})
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR dsv4)
set(CPACK_PACKAGE_CONTACT ${DSV4_MAINTAINER})
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_COMPONENTS_ALL runtime nano)
set(CPACK_STRIP_FILES ON)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/package_options.cmake)
set(CPACK_ARCHIVE_FILE_NAME ${DSV4_PACKAGE_NAME}-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_OUTPUT_FILE_PREFIX ${PROJECT_BINARY_DIR}/packages)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "inference engine for DeepSeek-V4 models
Generates text from a checkpoint of DeepSeek-V4 on this machine: in a terminal,
or over HTTP with the interfaces of OpenAI and Anthropic and a chat page.")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME ${DSV4_PACKAGE_NAME})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION misc)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS dsv4-nano)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS libzmq5)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/postinst
  ${PROJECT_SOURCE_DIR}/deploy/debian/prerm ${PROJECT_SOURCE_DIR}/deploy/debian/postrm)
if(DSV4_HAVE_CUDA)
  string(APPEND CPACK_COMPONENT_RUNTIME_DESCRIPTION "

This build also runs on NVIDIA GPUs. It contains the CUDA runtime and needs
NVIDIA's driver.")
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "dsv4-nano, libcuda1")
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_PROVIDES "dsv4 (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONFLICTS dsv4)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_REPLACES dsv4)
endif()
set(CPACK_COMPONENT_NANO_DESCRIPTION "small model for trying dsv4
A DeepSeek-V4 model of 20 MB that writes prose and adds numbers, with two draft
modules. Commands of dsv4 use it if no other model is given.")
set(CPACK_DEBIAN_NANO_PACKAGE_NAME dsv4-nano)
set(CPACK_DEBIAN_NANO_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_NANO_PACKAGE_SECTION misc)
set(CPACK_DEBIAN_NANO_PACKAGE_ENHANCES dsv4)
include(CPack)
