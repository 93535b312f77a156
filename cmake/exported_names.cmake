# Writes the names that libdsv4 shows, for objcopy (NAMES) and as a linker's version script (MAP): the names of OBJECT
# with default visibility that are in namespace dsv4 or begin with dsv4_. Inline code of other libraries' headers has
# default visibility, too, and stays hidden.
file(WRITE ${MAP} "")
execute_process(COMMAND ${READELF} --symbols --wide ${OBJECT} OUTPUT_FILE ${NAMES}.all COMMAND_ERROR_IS_FATAL ANY)
# Columns: number, value, size, type, binding, visibility, section (a number: defined here), name.
file(STRINGS ${NAMES}.all lines REGEX " (GLOBAL|WEAK) +DEFAULT +[0-9]+ (_ZT[VIS]N4dsv4|_ZNK?4dsv4|dsv4_)")
file(REMOVE ${NAMES}.all)
list(TRANSFORM lines REPLACE "^.* " "")
list(SORT lines)
list(REMOVE_DUPLICATES lines)
if(NOT lines)
  message(FATAL_ERROR "${OBJECT} has no name to export")
endif()
list(JOIN lines "\n" names)
file(WRITE ${NAMES} "${names}\n")
list(JOIN lines ";\n  " names)
file(WRITE ${MAP} "${NODE} {\n  global:\n  ${names};\n  local: *;\n};\n")
