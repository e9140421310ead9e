// The few-row product on AVX2: bf16 weights and inputs are widened to float32 in registers, which is a shift or a mask.
#pragma once
#include "lanes.h"
#include "packing.h"

namespace kernel {

constexpr int kMaxRows = 15;      // as many as a tile of attention has
constexpr int kValueBlocks = 1;   // that attention weighs in one sweep: its rows share what is loaded
constexpr int kGroup = 5;         // rows times blocks of one sweep: 10 accumulators leave room for weights and input
constexpr int64_t kAhead = 1024;  // weights that a sweep fetches ahead

#ifdef PROLEPSIS_AMX
using Operand = bf16;  // of rows of attention
#else
using Operand = float;  // of rows of attention: values of bf16, widened once as every page needs them
#endif

// The even or the odd element of each pair of bf16, as float32.
template <bool Odd>
inline __m256 widened(__m256i pairs) {
  return _mm256_castsi256_ps(Odd ? _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff0000)) : _mm256_slli_epi32(pairs, 16));
}
inline __m256i pairs_at(const bf16* w) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)); }

// An element of the pair at x in all lanes.
template <bool Odd>
inline __m256 element(const bf16* x) { return widened<Odd>(_mm256_set1_epi32(*reinterpret_cast<const int*>(x))); }
template <bool Odd>
inline __m256 element(const float* x) { return _mm256_broadcast_ss(x + Odd); }

// sums[r][b] += x[r] * column block b, for one element of the pairs at `x` and `columns`; blocks are `apart` elements apart.
template <bool Odd, int R, int B, class X>
[[gnu::always_inline]] inline void add_element(Lanes (&sums)[R][B], const X* x, int64_t stride, const bf16* columns, int64_t apart) {
  asm volatile("" : "+r"(x), "+r"(columns));  // loads again what a pair shares: to keep it takes the registers of sums
#pragma GCC unroll 2
  for (int b = 0; b < B; b++) {
    const bf16* column = columns + b * apart;
    const __m256 left = widened<Odd>(pairs_at(column)), right = widened<Odd>(pairs_at(column + 16));
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      const __m256 row = element<Odd>(x + r * stride);
      sums[r][b] = {_mm256_fmadd_ps(row, left, sums[r][b].low), _mm256_fmadd_ps(row, right, sums[r][b].high)};
    }
  }
}

// acc[r][b] += x[r] * block b of weights, for R x B <= kGroup: of each pair along K first the even element, then the odd one.
template <int R, int B, class X>
inline void sweep(Lanes (*acc)[B], const X* x, int64_t stride, const bf16* w, int64_t pairs) {
  Lanes sums[R][B];
#pragma GCC unroll 6  // here and below: as loops they also go through memory
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) sums[r][b] = acc[r][b];
  for (int64_t k = 0; k < pairs; k++) {
    for (int b = 0; b < B; b++) _mm_prefetch(reinterpret_cast<const char*>(w + (b * pairs + k) * 32 + kAhead), _MM_HINT_T0);
    add_element<false>(sums, x + 2 * k, stride, w + k * 32, pairs * 32);
    add_element<true>(sums, x + 2 * k, stride, w + k * 32, pairs * 32);
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) acc[r][b] = sums[r][b];
}

// Calls one(first, rows) for R rows in even groups of at most `Most`; the number of rows is a compile-time constant.
template <int R, int Most, class One>
inline void in_groups(const One& one) {
  constexpr int kSweeps = (R + Most - 1) / Most, kFirst = (R + kSweeps - 1) / kSweeps;
  one.template operator()<kFirst>(R - kFirst);
  if constexpr (R > kFirst) in_groups<R - kFirst, Most>(one);
}

// acc[b][r] += x[r] * block b of weights, over `pairs` pairs along K; blocks are `apart` elements apart.
template <int R, int B>
inline void accumulate(Lanes (&acc)[B][R], const Operand* x, int64_t stride, const bf16* w, int64_t apart, int64_t pairs) {
  for (int b = 0; b < B; b++)
    in_groups<R, kGroup>([&]<int Rows>(int first) {
      sweep<Rows, 1>(reinterpret_cast<Lanes(*)[1]>(acc[b] + first), x + first * stride, stride, w + b * apart, pairs);
    });
}

// c[r][0:32] = x[r] * two blocks; rows of c are `width` apart. A few rows take both blocks in one sweep: their sums are too few to hide latency.
template <int R, int Fetch, class X>
void product(const X* x, int64_t stride, const bf16* w, int64_t pairs, float* c, int64_t width, const bf16*) {
  constexpr int kBlocks = R <= 2 ? 2 : 1;
  for (int block = 0; block < 2; block += kBlocks) {
    Lanes acc[R][kBlocks];
    for (auto& row : acc)
      for (auto& sum : row) sum = lanes::zero();
    in_groups<R, kGroup>([&]<int Rows>(int first) {
      sweep<Rows, kBlocks>(acc + first, x + first * stride, stride, w + block * pairs * 32, pairs);
    });
    for (int r = 0; r < R; r++)
      for (int b = 0; b < kBlocks; b++) lanes::store(c + r * width + (block + b) * kBlock, acc[r][b]);
  }
}

}  // namespace kernel
