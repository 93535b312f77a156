# Writes OUTPUT: copyright lines and licence texts of the parts that NOTICE lists. XGRAMMAR is the folder of its source,
# or empty. The texts of Debian's packages are their copyright files.
set(text "Copyright lines and licence texts of the parts of other projects that dsv4 contains. NOTICE says how each is used.
The Apache License 2.0 is in LICENSE.
")

# add(PART FILE): appends FILE, or if it is missing says so.
macro(add part file)
  string(APPEND text "\n==== ${part} ====\n\n")
  if(EXISTS "${file}")
    file(READ "${file}" content)
    string(APPEND text "${content}")
  else()
    string(APPEND text "${file} was not found when this file was made.\n")
    message(STATUS "THIRD-PARTY has no text of ${part}: ${file} is missing")
  endif()
endmacro()

if(XGRAMMAR)
  add(XGrammar "${XGRAMMAR}/NOTICE")
  add(DLPack "${XGRAMMAR}/3rdparty/dlpack/LICENSE")
  # The licence of picojson is the first comment of its header.
  file(READ "${XGRAMMAR}/3rdparty/picojson/picojson.h" header)
  string(FIND "${header}" "*/" end)
  string(SUBSTRING "${header}" 0 ${end} header)
  string(REGEX REPLACE "(^/|\n) ?\\* ?" "\n" header "${header}")
  string(APPEND text "\n==== picojson ====\n${header}")
endif()
foreach(part "nlohmann-json;nlohmann-json3-dev" "CLI11;libcli11-dev" "zlib;zlib1g-dev" "OpenSSL;libssl-dev"
        "libedit;libedit-dev" "libbsd;libbsd-dev" "libmd;libmd-dev" "libtinfo;libncurses-dev"
        "marked;libjs-marked" "DOMPurify;node-dompurify" "KaTeX;libjs-katex" "Prism;node-prismjs")
  list(POP_FRONT part name)
  add(${name} /usr/share/doc/${part}/copyright)
endforeach()
file(WRITE "${OUTPUT}" "${text}")
