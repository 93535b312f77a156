# Several files of a target compiled as one: half of a build from nothing was the parsing of headers that they share, and
# templates that each of them instantiated anew. Names in anonymous namespaces differ within a target for it. The
# presets cpu and cpu-tsan compile every file alone, so that one that does not include what it uses is still found.
set(CMAKE_UNITY_BUILD ${DSV4_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8 CACHE STRING "Files compiled as one; 0: all of a target")
