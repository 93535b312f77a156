#!/bin/sh
# Stands in for a compiler, as REAL: writes an empty object or program, and its command line to LOG. So a whole build
# takes seconds, and its graph of targets, flags and link lines is the real one. CMake's own checks use the real compiler.
case $PWD in */CMakeFiles/*) exec "$REAL" "$@" ;; esac
object='' dependencies='' source='' link=1
line=$*
while [ $# -gt 0 ]; do
  case $1 in
    -o) object=$2 && shift ;;
    -MF) dependencies=$2 && shift ;;
    -c) link='' source=$2 ;;
  esac
  shift
done
if [ -z "$object" ]; then
  # shellcheck disable=SC2086  # the words of a query, without blanks in them
  exec "$REAL" $line
fi
printf '%s\n' "$line" >>"$LOG"
if [ -n "$link" ]; then
  rm -f -- "$object"
  printf '#!/bin/sh\n' >"$object" && chmod +x "$object"
else
  cp -- "$EMPTY_OBJECT" "$object"
fi
if [ -n "$dependencies" ]; then printf '%s: %s\n' "$object" "$source" >"$dependencies"; fi
