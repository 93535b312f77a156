# libdsv4, static and shared: one object of all libraries, in which only the names are global that include/dsv4 declares
# (DSV4_API, dsv4_*). XGrammar is inside. zlib and OpenSSL are linked into libdsv4.so, and libdsv4.a names them
# (cmake/install). The target libdsv4 builds both.
find_program(DSV4_GNU_LD NAMES ld.bfd REQUIRED)
find_program(DSV4_GNU_OBJCOPY NAMES objcopy REQUIRED)
find_program(DSV4_READELF NAMES readelf REQUIRED)

set(folder ${PROJECT_BINARY_DIR}/lib)
if(CMAKE_CONFIGURATION_TYPES)
  set(folder ${PROJECT_BINARY_DIR}/lib/$<CONFIG>)
endif()
set(parts dsv4_base dsv4_text dsv4_io dsv4_device dsv4_kv dsv4_ops dsv4_layers dsv4_model dsv4_engine)
if(DSV4_BUILD_SERVER)
  list(APPEND parts dsv4_server dsv4_c)
  if(DSV4_HAVE_XGRAMMAR)
    list(APPEND parts dsv4_xgrammar)
  endif()
endif()
list(TRANSFORM parts REPLACE ".+" "$<TARGET_FILE:\\0>" OUTPUT_VARIABLE archives)
set(object ${folder}/libdsv4.o)
set(map ${folder}/libdsv4.map)
add_custom_command(OUTPUT ${object} ${map}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
  COMMAND ${DSV4_GNU_LD} -r --force-group-allocation -o ${object} --whole-archive ${archives}
  COMMAND ${CMAKE_COMMAND} -DREADELF=${DSV4_READELF} -DOBJECT=${object} -DNAMES=${folder}/libdsv4.names -DMAP=${map}
          -DNODE=DSV4_${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} -P ${CMAKE_CURRENT_LIST_DIR}/exported_names.cmake
  COMMAND ${DSV4_GNU_OBJCOPY} --keep-global-symbols=${folder}/libdsv4.names ${object}
  DEPENDS ${parts} ${CMAKE_CURRENT_LIST_DIR}/exported_names.cmake COMMENT "Joining the libraries of libdsv4" VERBATIM)
add_custom_target(dsv4_joined DEPENDS ${object} ${map})

add_library(dsv4_static STATIC ${object})
add_library(dsv4_shared SHARED ${object})
foreach(target dsv4_static dsv4_shared)
  add_dependencies(${target} dsv4_joined)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME dsv4 LINKER_LANGUAGE CXX
    ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  target_compile_features(${target} INTERFACE cxx_std_20)
endforeach()
add_custom_target(libdsv4 DEPENDS dsv4_static dsv4_shared)

# Libraries that the static library leaves to its user.
set(DSV4_STATIC_NEEDS Threads::Threads ZLIB::ZLIB ${CMAKE_DL_LIBS} m)
set(DSV4_STATIC_PACKAGES ZLIB)
set(DSV4_PC_LIBS_PRIVATE "-lz -lstdc++ -lm -lpthread -l${CMAKE_DL_LIBS}")
target_link_libraries(dsv4_shared PRIVATE dsv4_zlib Threads::Threads ${CMAKE_DL_LIBS})
if(TARGET dsv4_openssl)
  list(PREPEND DSV4_STATIC_NEEDS OpenSSL::SSL)
  list(APPEND DSV4_STATIC_PACKAGES OpenSSL)
  string(PREPEND DSV4_PC_LIBS_PRIVATE "-lssl -lcrypto ")
  target_link_libraries(dsv4_shared PRIVATE dsv4_openssl)
endif()
if(DSV4_HAVE_CUDA)
  list(PREPEND DSV4_STATIC_NEEDS CUDA::cudart_static)
  list(APPEND DSV4_STATIC_PACKAGES CUDAToolkit)
  string(APPEND DSV4_PC_LIBS_PRIVATE " -lcudart_static -lrt")
  target_link_libraries(dsv4_shared PRIVATE CUDA::cudart_static)
endif()
target_link_libraries(dsv4_static INTERFACE "$<INSTALL_INTERFACE:${DSV4_STATIC_NEEDS}>")
target_link_options(dsv4_shared PRIVATE -Wl,--version-script=${map} -Wl,--exclude-libs,ALL -Wl,-z,defs)
set_target_properties(dsv4_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${map} EXPORT_NAME dsv4)
set_target_properties(dsv4_static PROPERTIES EXPORT_NAME static)
