// DSV4_VECTOR_CLONES in front of a function: the compiler makes it for several kinds of vectors, and the program's
// start chooses. For loops outside of the ops, whose instruction sets are chosen by the engine. Nothing where the
// compiler cannot, and under sanitizers, which come later than that choice.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define DSV4_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DSV4_VECTOR_CLONES
#endif
