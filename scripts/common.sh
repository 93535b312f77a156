# Helpers that the scripts of this folder source: root of the tree, errors, number of jobs, builds.
# shellcheck shell=bash

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
SCRIPT_NAME=scripts/$(basename -- "$0")
export LC_ALL=C.UTF-8

# Prints one line on stderr and exits with status 1.
die() {
  printf '%s: error: %s\n' "$SCRIPT_NAME" "$*" >&2
  exit 1
}

say() {
  printf '%s\n' "== $*"
}

# Turns ccache off if its folder cannot be written: every compilation would fail.
prepare_ccache() {
  local cache=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/ccache}
  if ! mkdir -p -- "$cache" 2>/dev/null || [ ! -w "$cache" ]; then
    export CCACHE_DISABLE=1
  fi
}

# Prints the MiB that this process may still use: the free memory of the machine, or the rest of the container's limit.
available_memory_mib() {
  local mib limit used
  mib=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
  if [ -r /sys/fs/cgroup/memory.max ] && [ -r /sys/fs/cgroup/memory.current ]; then
    limit=$(cat /sys/fs/cgroup/memory.max)
    used=$(cat /sys/fs/cgroup/memory.current)
    if [ "$limit" != max ] && [ $(((limit - used) / 1048576)) -lt "$mib" ]; then
      mib=$(((limit - used) / 1048576))
    fi
  fi
  echo "$mib"
}

# jobs_for MIB: prints the number of parallel jobs if each needs MIB of memory: one per usable core, fewer if memory is
# short, at least one.
jobs_for() {
  local cores by_memory
  cores=$(nproc)
  by_memory=$(($(available_memory_mib) / $1))
  if [ "$by_memory" -lt "$cores" ]; then cores=$by_memory; fi
  if [ "$cores" -lt 1 ]; then cores=1; fi
  echo "$cores"
}

# configure_preset PRESET [cmake options]: configures build/PRESET. Starts fresh if the folder was made for a tree at
# another path, because CMake refuses to reuse it.
configure_preset() {
  local preset=$1 cache=$ROOT/build/$1/CMakeCache.txt
  local fresh=()
  shift
  prepare_ccache
  if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$cache"; then fresh=(--fresh); fi
  (cd -- "$ROOT" && cmake --preset "$preset" "${fresh[@]}" "$@")
}

# build_preset PRESET MIB_PER_JOB [options of cmake --build]
build_preset() {
  local preset=$1 mib=$2
  shift 2
  cmake --build "$ROOT/build/$preset" --parallel "$(jobs_for "$mib")" "$@"
}

# Prints the path of nvcc, or nothing. cmake/Cuda.cmake searches the same places.
find_nvcc() {
  local place
  for place in "${CUDACXX:-}" "$(command -v nvcc)" /usr/local/cuda/bin/nvcc; do
    if [ -x "$place" ]; then echo "$place" && return; fi
  done
}

# Prints the folder of reference checkpoints next to the repository; it may not exist (tests/support/fixture.h).
fixtures_beside() {
  echo "$ROOT/../shared/fixtures"
}

# python_with MODULE VERSION: prints the path of .venv's Python after it has installed this PyPI package if missing.
# Fails if the package cannot be fetched.
python_with() {
  local venv=$ROOT/.venv
  if [ ! -x "$venv/bin/python" ]; then
    rm -rf -- "$venv"
    python3 -m venv "$venv" || return 1
  fi
  "$venv/bin/python" -c "import $1" 2>/dev/null ||
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 15 --retries 1 "$1==$2" >&2 ||
    return 1
  echo "$venv/bin/python"
}
