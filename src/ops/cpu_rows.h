// A kernel of a *_cpu.cc file is one function, compiled in one namespace per instruction set (ops/CMakeLists.txt).
// These macros write its declarations and its rows of an op's table, the widest set first. PRODUCT: for kernels that
// also use the extensions on top of AVX-512.
#pragma once

#include "ops/registry.h"

#define DSV4_DECLARE_IN(isa, function, args)            \
  namespace isa {                                       \
  void function(const ExecContext& ctx, const args& a); \
  }

#ifdef __x86_64__

#define DSV4_DECLARE_CPU(function, args)   \
  DSV4_DECLARE_IN(generic, function, args) \
  DSV4_DECLARE_IN(avx2, function, args)    \
  DSV4_DECLARE_IN(avx512, function, args)
#define DSV4_DECLARE_CPU_PRODUCT(function, args) \
  DSV4_DECLARE_CPU(function, args)               \
  DSV4_DECLARE_IN(avx512vnni, function, args)    \
  DSV4_DECLARE_IN(amx, function, args)
#define DSV4_CPU_ROWS(function)                                                         \
  {"avx512", SupportsAvx512, avx512::function}, {"avx2", SupportsAvx2, avx2::function}, \
      {"generic", SupportsCpu, generic::function},
#define DSV4_CPU_PRODUCT_ROWS(function) \
  {"amx", SupportsAmx, amx::function}, {"avx512vnni", SupportsAvx512Vnni, avx512vnni::function}, DSV4_CPU_ROWS(function)

#else

#define DSV4_DECLARE_CPU(function, args) DSV4_DECLARE_IN(generic, function, args)
#define DSV4_DECLARE_CPU_PRODUCT(function, args) DSV4_DECLARE_CPU(function, args)
#define DSV4_CPU_ROWS(function) {"generic", SupportsCpu, generic::function},
#define DSV4_CPU_PRODUCT_ROWS(function) DSV4_CPU_ROWS(function)

#endif
