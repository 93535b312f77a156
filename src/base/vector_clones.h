// DSV4_VECTOR_CLONES before a function: the compiler makes versions for several vector widths, and the program chooses
// one at its start. It is for loops outside of the ops; the engine chooses the ops' instruction sets. Empty if the
// compiler does not support it, and under sanitizers, which start after that choice.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define DSV4_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DSV4_VECTOR_CLONES
#endif
