// The test programs share a precompiled header of this file's target (cmake/Dsv4Targets.cmake, DSV4_TEST_HEADERS).
