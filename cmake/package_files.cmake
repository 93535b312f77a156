# Writes files that are installed, with PROGRAM (dsv4), into OUTPUT: manual pages and completions for the component
# "runtime", and changelogs of PACKAGE. The same program, CHANGELOG and SOURCE_DATE_EPOCH give the same bytes.
file(REMOVE_RECURSE ${OUTPUT})
file(MAKE_DIRECTORY ${OUTPUT}/man1 ${OUTPUT}/completions)
if(COMPONENT STREQUAL "runtime")
  execute_process(COMMAND ${PROGRAM} man -o ${OUTPUT}/man1 COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND ${PROGRAM} completions ${shell} OUTPUT_FILE ${OUTPUT}/completions/${shell}
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endif()
configure_file(${CHANGELOG} ${OUTPUT}/changelog COPYONLY)
# Debian's own changelog: of the package, not of the program.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)   # SOURCE_DATE_EPOCH, if it is set
file(WRITE ${OUTPUT}/changelog.Debian "${PACKAGE} (${VERSION}-1) unstable; urgency=medium

  * Version ${VERSION}. Its changes are in changelog.gz.

 -- ${MAINTAINER}  ${date}
")
file(GLOB texts ${OUTPUT}/man1/*.1)
execute_process(COMMAND gzip -9nf ${texts} ${OUTPUT}/changelog ${OUTPUT}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
