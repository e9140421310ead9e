// AVX2's intrinsics on AArch64, by SIMDe (https://github.com/simd-everywhere/simde), so that the kernels are written once.
#pragma once
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#ifndef _MM_FROUND_NO_EXC
#define _MM_FROUND_NO_EXC 0x08
#endif

// SIMDe rounds the product of 256 bits before it adds; that of 128 bits is fused, as the sums of the kernels are.
inline simde__m256 fused_halves(simde__m256 a, simde__m256 b, simde__m256 c) {
  const simde__m128 low = simde_mm_fmadd_ps(simde_mm256_castps256_ps128(a), simde_mm256_castps256_ps128(b), simde_mm256_castps256_ps128(c));
  const simde__m128 high = simde_mm_fmadd_ps(simde_mm256_extractf128_ps(a, 1), simde_mm256_extractf128_ps(b, 1), simde_mm256_extractf128_ps(c, 1));
  return simde_mm256_set_m128(high, low);
}
#undef _mm256_fmadd_ps
#undef _mm256_fnmadd_ps
#define _mm256_fmadd_ps(a, b, c) fused_halves(a, b, c)
#define _mm256_fnmadd_ps(a, b, c) fused_halves(simde_mm256_xor_ps(a, simde_mm256_set1_ps(-0.0f)), b, c)
