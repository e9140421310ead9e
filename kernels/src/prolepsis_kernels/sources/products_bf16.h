// The few-row product on AVX-512 BF16: a register of weights holds pairs along K of 16 columns.
#pragma once
#include "lanes.h"
#include "packing.h"

namespace kernel {

constexpr int kMaxRows = 12;      // rows of one product: 2 x 12 accumulators leave room for weights
constexpr int kValueBlocks = 2;   // that attention weighs in one sweep: sums of one are too few to hide latency
constexpr int64_t kAhead = 2048;  // weights (4 KiB) that a single sweep fetches ahead; best of 2, 4, 8 and 16 KiB

using Operand = bf16;  // of rows of attention

inline __m512bh pair(const bf16* x) { return (__m512bh)_mm512_set1_epi32(*reinterpret_cast<const int*>(x)); }
inline __m512bh weights(const bf16* w) { return (__m512bh)_mm512_loadu_si512(w); }

// acc[r][b] += x[r] * block b of weights, over `pairs` pairs along K; blocks stand one after another.
template <int R, int B>
inline void accumulate(Lanes (&acc)[R][B], const Operand* x, int64_t stride, const bf16* w, int64_t pairs) {
  for (int64_t k = 0; k < pairs; k++) {
    __m512bh columns[B];
    for (int b = 0; b < B; b++) columns[b] = weights(w + (b * pairs + k) * 32);
    for (int r = 0; r < R; r++) {
      const __m512bh row = pair(x + r * stride + 2 * k);
      for (int b = 0; b < B; b++) acc[r][b] = _mm512_dpbf16_ps(acc[r][b], row, columns[b]);
    }
  }
}

// c[r][0:32] = x[r] * two blocks, in one sweep over both; rows of c are `width` apart. Each step also fetches `Fetch` lines of what
// the thread will want next into L2: with several rows a sweep is too slow for the out-of-order window to cover memory's latency.
template <int R, int Fetch, class X>
void product(const X* x, int64_t stride, const bf16* w, int64_t pairs, float* c, int64_t width, const bf16* next) {
  __m512 left[R], right[R];
#pragma GCC unroll 12  // here and below: as loops they also go through memory, a fifth of a short product's time
  for (int r = 0; r < R; r++) left[r] = right[r] = _mm512_setzero_ps();
  const bf16* second = w + pairs * 32;
  for (int64_t k = 0; k < pairs; k++) {
    for (int line = 0; line < Fetch; line++) _mm_prefetch(reinterpret_cast<const char*>(next + (line * pairs + k) * 32), _MM_HINT_T1);
    const __m512bh a = weights(w + k * 32), b = weights(second + k * 32);
    for (int r = 0; r < R; r++) {
      const __m512bh row = pair(x + r * stride + 2 * k);
      left[r] = _mm512_dpbf16_ps(left[r], row, a);
      right[r] = _mm512_dpbf16_ps(right[r], row, b);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) {
    _mm512_storeu_ps(c + r * width, left[r]);
    _mm512_storeu_ps(c + r * width + kBlock, right[r]);
  }
}

}  // namespace kernel
