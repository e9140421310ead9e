// Sixteen float32 lanes: one AVX-512 register, or two of AVX2. Everything elementwise in the decoder is written once, on these.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

using bf16 = uint16_t;

inline bf16 to_bf16(float value) {  // round to nearest even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

#if defined(__AVX512F__)

using Lanes = __m512;

namespace lanes {

inline Lanes load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Lanes v) { _mm512_storeu_ps(p, v); }
inline Lanes all(float v) { return _mm512_set1_ps(v); }
inline Lanes zero() { return _mm512_setzero_ps(); }
inline Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
inline Lanes sub(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
inline Lanes mul(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
inline Lanes reciprocal(Lanes v) {  // to the last bit but one, in a third of a division's time
  const Lanes guess = _mm512_rcp14_ps(v);
  return _mm512_mul_ps(guess, _mm512_fnmadd_ps(v, guess, _mm512_set1_ps(2.0f)));
}
inline Lanes max(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
inline Lanes fnma(Lanes a, Lanes b, Lanes c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
inline Lanes round(Lanes v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Lanes scale_by_power(Lanes v, Lanes n) { return _mm512_scalef_ps(v, n); }  // v * 2^n for whole n
inline float sum(Lanes v) { return _mm512_reduce_add_ps(v); }
inline float highest(Lanes v) { return _mm512_reduce_max_ps(v); }

inline __mmask16 first(int count) { return count >= 16 ? 0xffff : (1u << (count > 0 ? count : 0)) - 1; }
// The first `count` lanes of v (16 or more: all), `other` in the rest.
inline Lanes keep_first(int count, Lanes v, Lanes other) { return _mm512_mask_mov_ps(other, first(count), v); }

#if defined(__AVX512BF16__)

inline void store_bf16(bf16* target, Lanes value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), (__m256i)_mm512_cvtneps_pbh(value));
}

// Rounds to bf16 and stores lane by lane the pair (even, odd): 32 values.
inline void store_pairs(bf16* target, Lanes even, Lanes odd) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
  _mm512_storeu_si512(target, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both));
}

#else

inline __m512i rounded(Lanes v) {  // bf16 in the lower half of each lane, rounded to nearest even
  const __m512i bits = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
}
inline void store_bf16(bf16* target, Lanes value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm512_cvtepi32_epi16(rounded(value)));
}
inline void store_bf16(float* target, Lanes value) {  // the values of bf16, as float32
  store(target, _mm512_castsi512_ps(_mm512_slli_epi32(rounded(value), 16)));
}
inline void store_pairs(bf16* target, Lanes even, Lanes odd) {
  _mm512_storeu_si512(target, _mm512_or_si512(rounded(even), _mm512_slli_epi32(rounded(odd), 16)));
}

// The even or the odd element of pairs of bf16, as float32.
template <bool Odd>
inline Lanes widened(__m512i pairs) {
  return _mm512_castsi512_ps(Odd ? _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000)) : _mm512_slli_epi32(pairs, 16));
}
template <bool Odd>
inline Lanes load_of_pairs(const bf16* pairs) { return widened<Odd>(_mm512_loadu_si512(pairs)); }  // of 16 pairs
template <bool Odd>
inline Lanes all_of_pair(const bf16* pair) { return widened<Odd>(_mm512_set1_epi32(*reinterpret_cast<const int*>(pair))); }

#endif

// 32 values within int8, rounded to nearest even.
inline __m256i as_int8(Lanes a, Lanes b) {
  return _mm256_set_m128i(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(b)), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

inline Lanes load_int32(const int32_t* source) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(source)); }

inline Lanes load(const bf16* source) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

inline Lanes load_half(const uint8_t* source) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source))); }
inline Lanes load_uint8(const uint8_t* source) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))));
}
inline Lanes load_int8(const uint8_t* source) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))));
}

using Bytes = __m512i;  // four for each lane

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_bytes(uint8_t* p, Bytes v) { _mm512_storeu_si512(p, v); }
template <int Mask>
inline Bytes bits(Bytes v, int from) { return _mm512_and_si512(_mm512_srli_epi16(v, from), _mm512_set1_epi8(Mask)); }  // of each byte
template <int Mask>
inline Bytes join_shifted(Bytes low, Bytes high, int left) {  // low, and of each byte of `high`, moved to the left, what the mask keeps
  const Bytes moved = left >= 0 ? _mm512_slli_epi16(high, left) : _mm512_srli_epi16(high, -left);
  return _mm512_ternarylogic_epi32(moved, _mm512_set1_epi8(Mask), low, 0xea);
}
inline Bytes minus(Bytes v, int by) { return _mm512_sub_epi8(v, _mm512_set1_epi8(by)); }  // of each byte
template <int By>
inline Bytes shift_left(Bytes v) { return _mm512_slli_epi16(v, By); }

// The same register as sixteen int32, or as a pair of int16 for each of them.
inline Bytes zero_bytes() { return _mm512_setzero_si512(); }
inline Bytes all_int32(int32_t v) { return _mm512_set1_epi32(v); }
template <bool Signed>
inline Bytes widen_bytes(const uint8_t* source) {  // 16 bytes to int32
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  return Signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
}
inline Bytes pairs(Bytes first, Bytes second) { return _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16)); }
inline Bytes add_int32(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
inline Bytes sub_int32(Bytes a, Bytes b) { return _mm512_sub_epi32(a, b); }
inline Bytes mul_int32(Bytes a, Bytes b) { return _mm512_mullo_epi32(a, b); }
template <int By>
inline Bytes shift_int32(Bytes v) { return _mm512_slli_epi32(v, By); }  // to the left
inline Bytes add_int16(Bytes a, Bytes b) { return _mm512_add_epi16(a, b); }
inline Bytes sub_int16(Bytes a, Bytes b) { return _mm512_sub_epi16(a, b); }
inline Bytes mul_int16(Bytes a, Bytes b) { return _mm512_mullo_epi16(a, b); }
inline Bytes byte_products(Bytes a, Bytes b) { return _mm512_maddubs_epi16(a, b); }  // of unsigned a and signed b, added in pairs
inline Bytes low_bytes(Bytes even, Bytes odd) { return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, even, _mm512_slli_epi16(odd, 8)); }  // of int16
inline Bytes high_bytes(Bytes even, Bytes odd) { return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, _mm512_srli_epi16(even, 8), odd); }
inline Bytes add_pair_products(Bytes sum, Bytes a, Bytes b) { return _mm512_dpwssd_epi32(sum, a, b); }
inline Lanes int32_as_float(Bytes v) { return _mm512_cvtepi32_ps(v); }
inline Lanes byte_of(Bytes v, int i) {
  return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(v, 8 * i), _mm512_set1_epi32(255)));
}

}  // namespace lanes

#else

struct Lanes {
  __m256 low, high;
};

namespace lanes {

inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Lanes v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
inline Lanes all(float v) {
  const __m256 half = _mm256_set1_ps(v);
  return {half, half};
}
inline Lanes zero() { return all(0.0f); }
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes reciprocal(Lanes v) { return {_mm256_div_ps(_mm256_set1_ps(1.0f), v.low), _mm256_div_ps(_mm256_set1_ps(1.0f), v.high)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {  // a * b + c
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes fnma(Lanes a, Lanes b, Lanes c) {  // c - a * b
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
inline Lanes round(Lanes v) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(v.low, kMode), _mm256_round_ps(v.high, kMode)};
}

inline __m256 scale_half(__m256 v, __m256 n) {
  const __m256i exponent = _mm256_max_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), _mm256_setzero_si256());
  return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
// v * 2^n for whole n up to 127; below -126 it gives 0.
inline Lanes scale_by_power(Lanes v, Lanes n) { return {scale_half(v.low, n.low), scale_half(v.high, n.high)}; }

inline float sum(Lanes v) {
  const __m256 half = _mm256_add_ps(v.low, v.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float highest(Lanes v) {
  const __m256 half = _mm256_max_ps(v.low, v.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// The first `count` lanes of v (16 or more: all), `other` in the rest.
inline Lanes keep_first(int count, Lanes v, Lanes other) {
  const __m256i limit = _mm256_set1_epi32(count), places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, places));
  const __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, _mm256_add_epi32(places, _mm256_set1_epi32(8))));
  return {_mm256_blendv_ps(other.low, v.low, low), _mm256_blendv_ps(other.high, v.high, high)};
}

inline __m256i rounded(__m256 v) {  // bf16 in the lower half of each lane, rounded to nearest even
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}
inline void store_bf16(bf16* target, Lanes value) {
  const __m256i packed = _mm256_packus_epi32(rounded(value.low), rounded(value.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm256_permute4x64_epi64(packed, 0b11011000));
}
inline void store_bf16(float* target, Lanes value) {  // the values of bf16, as float32
  const auto wide = [](__m256 half) { return _mm256_castsi256_ps(_mm256_slli_epi32(rounded(half), 16)); };
  store(target, {wide(value.low), wide(value.high)});
}

// 32 values within int8, rounded to nearest even.
inline __m256i as_int8(Lanes a, Lanes b) {
  const auto pairs = [](Lanes v) { return _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high)); };
  const __m256i fours = _mm256_packs_epi16(pairs(a), pairs(b));  // of 4 values each: a, a, b, b from the lower halves, then the upper ones
  return _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

inline __m256 widen(const int32_t* source) { return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source))); }
inline Lanes load_int32(const int32_t* source) { return {widen(source), widen(source + 8)}; }

inline __m256 widen(const bf16* source) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Lanes load(const bf16* source) { return {widen(source), widen(source + 8)}; }

inline Lanes load_half(const uint8_t* source) {
  const auto* halves = reinterpret_cast<const __m128i*>(source);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline Lanes load_uint8(const uint8_t* source) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(all)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8)))};
}
inline Lanes load_int8(const uint8_t* source) {
  const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}

inline void store_pairs(bf16* target, Lanes even, Lanes odd) {
  const auto pairs = [](__m256 low, __m256 high) { return _mm256_or_si256(rounded(low), _mm256_slli_epi32(rounded(high), 16)); };
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), pairs(even.low, odd.low));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target) + 1, pairs(even.high, odd.high));
}

template <bool Odd>
inline __m256 widened(__m256i pairs) {
  return _mm256_castsi256_ps(Odd ? _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff0000)) : _mm256_slli_epi32(pairs, 16));
}
template <bool Odd>
inline Lanes load_of_pairs(const bf16* pairs) {
  const auto* halves = reinterpret_cast<const __m256i*>(pairs);
  return {widened<Odd>(_mm256_loadu_si256(halves)), widened<Odd>(_mm256_loadu_si256(halves + 1))};
}
template <bool Odd>
inline Lanes all_of_pair(const bf16* pair) {
  const __m256 element = widened<Odd>(_mm256_set1_epi32(*reinterpret_cast<const int*>(pair)));
  return {element, element};
}

struct Bytes {  // four for each lane
  __m256i low, high;
};

inline Bytes load_bytes(const uint8_t* p) {
  const auto* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline void store_bytes(uint8_t* p, Bytes v) {
  auto* halves = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(halves, v.low);
  _mm256_storeu_si256(halves + 1, v.high);
}
template <int Mask>
inline Bytes bits(Bytes v, int from) {  // of each byte
  const __m256i mask = _mm256_set1_epi8(Mask);
  return {_mm256_and_si256(_mm256_srli_epi16(v.low, from), mask), _mm256_and_si256(_mm256_srli_epi16(v.high, from), mask)};
}
inline Bytes minus(Bytes v, int by) {  // of each byte
  return {_mm256_sub_epi8(v.low, _mm256_set1_epi8(by)), _mm256_sub_epi8(v.high, _mm256_set1_epi8(by))};
}
template <int Mask>
inline Bytes join_shifted(Bytes low, Bytes high, int left) {  // low, and of each byte of `high`, moved to the left, what the mask keeps
  const auto moved = [&](__m256i v) {
    return _mm256_and_si256(left >= 0 ? _mm256_slli_epi16(v, left) : _mm256_srli_epi16(v, -left), _mm256_set1_epi8(Mask));
  };
  return {_mm256_or_si256(low.low, moved(high.low)), _mm256_or_si256(low.high, moved(high.high))};
}
template <int By>
inline Bytes shift_left(Bytes v) { return {_mm256_slli_epi16(v.low, By), _mm256_slli_epi16(v.high, By)}; }

// The same register as sixteen int32, or as a pair of int16 for each of them.
inline Bytes zero_bytes() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Bytes all_int32(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
template <bool Signed>
inline Bytes widen_bytes(const uint8_t* source) {  // 16 bytes to int32
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
  const auto widen = [](__m128i eight) { return Signed ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight); };
  return {widen(bytes), widen(_mm_srli_si128(bytes, 8))};
}
template <class Operation>
inline Bytes by_halves(Bytes a, Bytes b, const Operation& operation) { return {operation(a.low, b.low), operation(a.high, b.high)}; }
inline Bytes pairs(Bytes first, Bytes second) {
  return by_halves(first, second, [](__m256i a, __m256i b) { return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa); });
}
inline Bytes add_int32(Bytes a, Bytes b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline Bytes sub_int32(Bytes a, Bytes b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
inline Bytes mul_int32(Bytes a, Bytes b) { return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)}; }
template <int By>
inline Bytes shift_int32(Bytes v) { return {_mm256_slli_epi32(v.low, By), _mm256_slli_epi32(v.high, By)}; }  // to the left
inline Bytes add_int16(Bytes a, Bytes b) { return {_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)}; }
inline Bytes sub_int16(Bytes a, Bytes b) { return {_mm256_sub_epi16(a.low, b.low), _mm256_sub_epi16(a.high, b.high)}; }
inline Bytes mul_int16(Bytes a, Bytes b) { return {_mm256_mullo_epi16(a.low, b.low), _mm256_mullo_epi16(a.high, b.high)}; }
inline Bytes byte_products(Bytes a, Bytes b) {  // of unsigned a and signed b, added in pairs
  return {_mm256_maddubs_epi16(a.low, b.low), _mm256_maddubs_epi16(a.high, b.high)};
}
inline Bytes low_bytes(Bytes even, Bytes odd) {  // of int16
  return by_halves(even, odd, [](__m256i a, __m256i b) { return _mm256_blendv_epi8(a, _mm256_slli_epi16(b, 8), _mm256_set1_epi16(-256)); });
}
inline Bytes high_bytes(Bytes even, Bytes odd) {
  return by_halves(even, odd, [](__m256i a, __m256i b) { return _mm256_blendv_epi8(_mm256_srli_epi16(a, 8), b, _mm256_set1_epi16(-256)); });
}
inline Bytes add_pair_products(Bytes sum, Bytes a, Bytes b) {
  return add_int32(sum, {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)});
}
inline Lanes int32_as_float(Bytes v) { return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)}; }
inline __m256 byte_of(__m256i v, int i) { return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(v, 8 * i), _mm256_set1_epi32(255))); }
inline Lanes byte_of(Bytes v, int i) { return {byte_of(v.low, i), byte_of(v.high, i)}; }

}  // namespace lanes

#endif

using lanes::Bytes;
