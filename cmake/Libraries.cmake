# The libraries of other projects that are linked statically, so that the program and libdsv4 need only the C++ runtime
# to start. Each has a cache variable and a target of its own: find_package(OpenSSL) and find_package(ZLIB) would return
# the libraries that a parent project has found, or set the libraries that the parent finds later.

# dsv4_find_archives(TARGET HEADER LIBRARY...): sets TARGET_FOUND, and if it is ON adds the target with HEADER's folder
# and these archives, in the order in which they link.
function(dsv4_find_archives target header)
  string(TOUPPER ${target} prefix)
  find_path(${prefix}_INCLUDE ${header})
  mark_as_advanced(${prefix}_INCLUDE)
  set(archives "")
  foreach(library ${ARGN})
    find_library(${prefix}_${library} NAMES lib${library}.a)
    mark_as_advanced(${prefix}_${library})
    list(APPEND archives ${${prefix}_${library}})
  endforeach()
  set(found OFF)
  if(${prefix}_INCLUDE AND NOT archives MATCHES "NOTFOUND")
    set(found ON)
    add_library(${target} INTERFACE)
    target_include_directories(${target} SYSTEM INTERFACE ${${prefix}_INCLUDE})
    target_link_libraries(${target} INTERFACE ${archives})
  endif()
  set(${target}_FOUND ${found} PARENT_SCOPE)
endfunction()

# libedit, for line editing in `dsv4 chat` (Debian: libedit-dev). Without it the terminal edits lines. Sets
# DSV4_HAVE_LIBEDIT; the target is dsv4_libedit.
macro(dsv4_find_libedit)
  dsv4_find_archives(dsv4_libedit histedit.h edit bsd md tinfo)
  set(DSV4_HAVE_LIBEDIT ${dsv4_libedit_FOUND})
  if(NOT DSV4_HAVE_LIBEDIT)
    message(STATUS "Line editing in dsv4 chat: off, libedit-dev was not found. scripts/setup installs it.")
  endif()
endmacro()

# zlib, for checksums of saved KV (Debian: zlib1g-dev); the target is dsv4_zlib.
macro(dsv4_find_zlib)
  dsv4_find_archives(dsv4_zlib zlib.h z)
  if(NOT dsv4_zlib_FOUND)
    message(FATAL_ERROR "zlib.h or libz.a was not found: install zlib1g-dev (scripts/setup)")
  endif()
endmacro()

# OpenSSL 3, for dsv4 serve --tls-cert (Debian: libssl-dev). Sets DSV4_HAVE_OPENSSL; the target is dsv4_openssl.
macro(dsv4_find_openssl)
  dsv4_find_archives(dsv4_openssl openssl/ssl.h ssl crypto)
  set(DSV4_HAVE_OPENSSL ${dsv4_openssl_FOUND})
  if(DSV4_HAVE_OPENSSL)
    target_link_libraries(dsv4_openssl INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
    file(STRINGS ${DSV4_OPENSSL_INCLUDE}/openssl/opensslv.h openssl_version REGEX "define OPENSSL_VERSION_MAJOR +[0-9]+")
    if(NOT openssl_version MATCHES " ([3-9]|[1-9][0-9]+)$")
      message(STATUS "TLS: ${DSV4_OPENSSL_INCLUDE}/openssl is older than OpenSSL 3")
      set(DSV4_HAVE_OPENSSL OFF)
    endif()
  endif()
  if(NOT DSV4_HAVE_OPENSSL)
    message(STATUS "TLS in dsv4 serve: off, OpenSSL 3 was not found. scripts/setup installs libssl-dev.")
  endif()
endmacro()
