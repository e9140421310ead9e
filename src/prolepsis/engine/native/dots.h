// Sums of products of bytes, four along K at once, for 16 columns: of unsigned codes of weights and signed values of a row.
#pragma once
#include "lanes.h"

namespace stored {

#if defined(__AVX512VNNI__)

constexpr bool kScalesLate = true;  // sums are of codes times values, and `joined` takes the scale in
constexpr int kTogether = 2;  // blocks that share what a sweep loads of its rows
constexpr int kSuperRows = 8;  // of a sweep over supers; of more than `kSweepRows`, which takes one block, sums and totals stay in registers

using Sums = __m512i;  // of 16 columns

template <class L>
inline Sums sums_from(int32_t start) { return _mm512_set1_epi32(start); }
inline Lanes as_float(Sums sums) { return _mm512_cvtepi32_ps(sums); }

// sums += four codes of each column times four values of a row.
template <class L>
inline void add_dot(Sums& sums, Bytes codes, int32_t row, int, Bytes) { sums = _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(row)); }

// How `add_dot` and `joined` take an int32 scale; whole += sums * scale.
inline Bytes factor_of(Bytes scale) { return scale; }
inline Bytes joined(Bytes whole, Sums sums, Bytes scale) { return lanes::add_int32(whole, lanes::mul_int32(sums, scale)); }

#else

constexpr int kTogether = 1;
constexpr int kSuperRows = 6;

#if defined(__AVXVNNI__)

constexpr bool kScalesLate = true;

using Half = __m256i;  // of the sums: of 8 columns

template <class L>
inline Half half_from(int32_t start) { return _mm256_set1_epi32(start); }
inline __m256 as_float(Half half) { return _mm256_cvtepi32_ps(half); }
inline Bytes factor_of(Bytes scale) { return scale; }
inline __m256i joined(__m256i whole, Half half, __m256i scale) { return _mm256_add_epi32(whole, _mm256_mullo_epi32(half, scale)); }

// sums += four codes of each column times four values of a row.
template <class L>
inline void add_dot(Half& sums, __m256i codes, __m256i x, int, __m256i) { sums = _mm256_dpbusd_avx_epi32(sums, codes, x); }

#else

constexpr bool kScalesLate = false;

struct Half {  // of the sums: of 8 columns
  __m256i sums, pairs;  // int32; int16, of the products that are not yet in `sums`
};

template <class L>
inline Half half_from(int32_t start) {
  return {_mm256_set1_epi32(L::kBits == 8 ? 0 : start), _mm256_setzero_si256()};  // codes of 8 bits lose their offset below
}
inline __m256 as_float(const Half& half) { return _mm256_cvtepi32_ps(half.sums); }
inline Bytes factor_of(Bytes scale) { return lanes::pairs(scale, scale); }
inline __m256i joined(__m256i whole, const Half& half, __m256i) { return _mm256_add_epi32(whole, half.sums); }  // they are scaled

// Quads of which two products each, of codes up to 2^Bits - 1 and values up to 127, add up within int16.
template <int Bits>
constexpr int kQuadsOfPairs = Bits == 8 ? 1 : 32767 / (2 * 127 * ((1 << Bits) - 1));

// A sum that is made where it stands: the compiler would first make all products of a group, which leaves too few registers.
inline __m256i at_once(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

// sums += four codes of each column times four values of a row, times `scale`, int16; quad k of a group. Codes of 8 bits become signed, and give their sign
// to the values, as two products of 255 would overflow int16.
template <class L>
inline void add_dot(Half& half, __m256i codes, __m256i x, int k, __m256i scale) {
  constexpr int kRun = kQuadsOfPairs<L::kBits>;
  if constexpr (L::kBits == 8) {
    codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    x = _mm256_sign_epi8(x, codes);
    codes = _mm256_abs_epi8(codes);
  }
  const __m256i products = _mm256_maddubs_epi16(codes, x);
  half.pairs = k % kRun == 0 ? products : at_once(_mm256_add_epi16(half.pairs, products));
  if (k % kRun == kRun - 1) half.sums = at_once(_mm256_add_epi32(half.sums, _mm256_madd_epi16(half.pairs, scale)));
}

#endif

struct Sums {
  Half low, high;
};

template <class L>
inline Sums sums_from(int32_t start) { return {half_from<L>(start), half_from<L>(start)}; }
inline Lanes as_float(const Sums& s) { return {as_float(s.low), as_float(s.high)}; }

template <class L>
inline void add_dot(Sums& sums, Bytes codes, int32_t row, int k, Bytes scale) {
  const __m256i x = _mm256_set1_epi32(row);
  add_dot<L>(sums.low, codes.low, x, k, scale.low);
  add_dot<L>(sums.high, codes.high, x, k, scale.high);
}
inline Bytes joined(Bytes whole, const Sums& sums, Bytes scale) {
  return {joined(whole.low, sums.low, scale.low), joined(whole.high, sums.high, scale.high)};
}

#endif

}  // namespace stored
