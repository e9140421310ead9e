// Elementwise pieces of a decoder layer on 16 lanes, each with one order of summation.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using bf16 = uint16_t;

inline bf16 to_bf16(float value) {  // round to nearest even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

inline void store_bf16(bf16* target, __m512 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), (__m256i)_mm512_cvtneps_pbh(value));
}

inline __m512 load_bf16(const bf16* source) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

// exp for x <= 88: 2^n times a polynomial on [-0.5 ln 2, 0.5 ln 2], relative error under 2e-7; very negative x give 0.
inline __m512 exp_ps(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145751953125f), x);
  f = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.428606765330187e-6f), f);
  __m512 p = _mm512_set1_ps(1.0f / 720);
  for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

inline __m512 silu_ps(__m512 x) {
  const __m512 e = exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(x, _mm512_set1_ps(-80.0f))));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

// target = source / rms(source) * weight in bf16, zero padded to `padded` (multiple of 16); size a multiple of 16.
inline void rms_norm(const float* source, const float* weight, float eps, int64_t size, bf16* target) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    const __m512 v = _mm512_loadu_ps(source + i);
    sum = _mm512_fmadd_ps(v, v, sum);
  }
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / size + eps));
  for (int64_t i = 0; i < size; i += 16)
    store_bf16(target + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(source + i), scale), _mm512_loadu_ps(weight + i)));
}

// One head in place: optional RMS norm (Qwen3), then rotation of the two halves by the position's angles.
inline void norm_and_rotate(float* head, int64_t size, const float* norm, float eps, const float* cosine, const float* sine) {
  if (norm) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += 16) sum = _mm512_fmadd_ps(_mm512_loadu_ps(head + i), _mm512_loadu_ps(head + i), sum);
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / size + eps));
    for (int64_t i = 0; i < size; i += 16)
      _mm512_storeu_ps(head + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(head + i), scale), _mm512_loadu_ps(norm + i)));
  }
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const __m512 a = _mm512_loadu_ps(head + i), b = _mm512_loadu_ps(head + half + i);
    const __m512 c = _mm512_loadu_ps(cosine + i), s = _mm512_loadu_ps(sine + i);
    _mm512_storeu_ps(head + i, _mm512_fnmadd_ps(b, s, _mm512_mul_ps(a, c)));
    _mm512_storeu_ps(head + half + i, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
  }
}
