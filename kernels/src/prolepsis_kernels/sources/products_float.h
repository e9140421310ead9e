// The few-row product without bf16 instructions (AVX2, AVX-512): weights and inputs are widened to float32 in registers, by a shift or a
// mask.
#pragma once
#include "lanes.h"
#include "packing.h"

namespace kernel {

#if defined(__AVX512F__)
constexpr int kMaxRows = 12;     // as many as a tile of attention has
constexpr int kValueBlocks = 2;  // that attention weighs in one sweep
constexpr int kSums = 24;        // rows times blocks of one sweep: these accumulators leave room for weights and input
#else
constexpr int kMaxRows = 15;
constexpr int kValueBlocks = 1;  // its rows share what is loaded
constexpr int kSums = 5;         // of two registers each
#endif
constexpr int64_t kAhead = 1024;  // weights that a sweep fetches ahead

#ifdef PROLEPSIS_AMX
using Operand = bf16;  // of rows of attention
#else
using Operand = float;  // of rows of attention: values of bf16, widened once as every page needs them
#endif

// An element of the pair at x in all lanes.
template <bool Odd>
inline Lanes element(const bf16* x) { return lanes::all_of_pair<Odd>(x); }
template <bool Odd>
inline Lanes element(const float* x) { return lanes::all(x[Odd]); }

// sums[r][b] += x[r] * block b, for one element of the pairs at `x` and `columns`; blocks are `apart` elements apart.
template <bool Odd, int R, int B, class X>
[[gnu::always_inline]] inline void add_element(Lanes (&sums)[R][B], const X* x, int64_t stride, const bf16* columns, int64_t apart) {
  asm volatile("" : "+r"(x), "+r"(columns));  // loads again what a pair shares: to keep it takes the registers of sums
  Lanes column[B];
#pragma GCC unroll 2
  for (int b = 0; b < B; b++) column[b] = lanes::load_of_pairs<Odd>(columns + b * apart);
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) {
    const Lanes row = element<Odd>(x + r * stride);
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) sums[r][b] = lanes::fma(row, column[b], sums[r][b]);
  }
}

// acc[r][b] += x[r] * block b of weights, for R x B <= kSums: of each pair along K first the even element, then the odd one.
template <int R, int B, class X>
inline void sweep(Lanes (*acc)[B], const X* x, int64_t stride, const bf16* w, int64_t pairs) {
  Lanes sums[R][B];
#pragma GCC unroll 12  // here and below: as loops they also go through memory
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) sums[r][b] = acc[r][b];
  for (int64_t k = 0; k < pairs; k++) {
    for (int b = 0; b < B; b++) _mm_prefetch(reinterpret_cast<const char*>(w + (b * pairs + k) * 32 + kAhead), _MM_HINT_T0);
    add_element<false>(sums, x + 2 * k, stride, w + k * 32, pairs * 32);
    add_element<true>(sums, x + 2 * k, stride, w + k * 32, pairs * 32);
  }
#pragma GCC unroll 12
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

// acc[r][b] += x[r] * block b of weights, over `pairs` pairs along K; blocks stand one after another.
template <int R, int B>
inline void accumulate(Lanes (&acc)[R][B], const Operand* x, int64_t stride, const bf16* w, int64_t pairs) {
  in_groups<R, kSums / B>([&]<int Rows>(int first) { sweep<Rows, B>(acc + first, x + first * stride, stride, w, pairs); });
}

// c[r][0:32] = x[r] * two blocks; rows of c are `width` apart. Rows that are few enough take both blocks in one sweep: sums of one are too
// few to hide latency.
template <int R, int Fetch, class X>
void product(const X* x, int64_t stride, const bf16* w, int64_t pairs, float* c, int64_t width, const bf16*) {
  constexpr int kBlocks = 2 * R <= kSums ? 2 : 1;
  for (int block = 0; block < 2; block += kBlocks) {
    Lanes acc[R][kBlocks];
    for (auto& row : acc)
      for (auto& sum : row) sum = lanes::zero();
    in_groups<R, kSums / kBlocks>([&]<int Rows>(int first) {
      sweep<Rows, kBlocks>(acc + first, x + first * stride, stride, w + block * pairs * 32, pairs);
    });
    for (int r = 0; r < R; r++)
      for (int b = 0; b < kBlocks; b++) lanes::store(c + r * width + (block + b) * kBlock, acc[r][b]);
  }
}

}  // namespace kernel
