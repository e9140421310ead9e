// Products of a few bf16 rows with packed bf16 weights. Every row is summed in one fixed order, whatever the number of rows.
//
// Packed weights [N/16][K/2][16][2]: for a block of 16 columns, pairs along K side by side, as both vdpbf16ps and AMX read them.
// Legend: R rows, K contraction (multiple of 32), a task covers two blocks = 32 columns.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

using bf16 = uint16_t;

constexpr int kBlock = 16;            // columns of a block
constexpr int kTask = 2 * kBlock;     // columns of a task
constexpr int kMaxRows = 12;          // rows of one AVX-512 product: 2 x 12 accumulators leave room for weights

namespace avx512 {

constexpr int64_t kAhead = 2048;  // weights (4 KiB) that a single sweep fetches ahead; best of 2, 4, 8 and 16 KiB

inline __m512bh pair(const bf16* x) { return (__m512bh)_mm512_set1_epi32(*reinterpret_cast<const int*>(x)); }
inline __m512bh weights(const bf16* w) { return (__m512bh)_mm512_loadu_si512(w); }

// acc[r] += x[r] * one block of weights, over `pairs` pairs along K.
template <int R>
inline void accumulate(__m512 (&acc)[R], const bf16* x, int64_t stride, const bf16* w, int64_t pairs) {
  for (int64_t k = 0; k < pairs; k++) {
    const __m512bh column = weights(w + k * 32);
    for (int r = 0; r < R; r++) acc[r] = _mm512_dpbf16_ps(acc[r], pair(x + r * stride + 2 * k), column);
  }
}

// c[r][0:32] = x[r] * two blocks, in one sweep over both. Each step also fetches `Fetch` lines of what the thread will want
// next into L2: with several rows a sweep is too slow for the out-of-order window to cover memory's latency.
template <int R, int Fetch>
void product(const bf16* x, int64_t stride, const bf16* w, int64_t pairs, float* c, const bf16* next) {
  __m512 left[R], right[R];
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
  for (int r = 0; r < R; r++) {
    _mm512_store_ps(c + r * kTask, left[r]);
    _mm512_store_ps(c + r * kTask + kBlock, right[r]);
  }
}

using Product = void (*)(const bf16*, int64_t, const bf16*, int64_t, float*, const bf16*);
template <int Fetch, int... R>
constexpr auto table(std::integer_sequence<int, R...>) {
  return std::array<Product, sizeof...(R)>{product<R + 1, Fetch>...};
}
template <int Fetch>
inline constexpr auto kProducts = table<Fetch>(std::make_integer_sequence<int, kMaxRows>{});

}  // namespace avx512

#ifdef PROLEPSIS_AMX
#include "amx.h"
#endif

// Calls epilogue(first_row, rows, c) with c[rows][32] for every group of rows of x [M, K] times task `task` of packed weights.
template <class Epilogue>
void task_product(const bf16* x, int64_t stride, int64_t M, const bf16* packed, int64_t K, int64_t task, float* c,
                  const Epilogue& epilogue) {
  const bf16* w = packed + task * kTask * K;
#ifdef PROLEPSIS_AMX
  for (int64_t first = 0; first < M; first += amx::kRows) {
    const int rows = std::min<int64_t>(amx::kRows, M - first);
    amx::product(x + first * stride, stride, rows, w, K, c);
    epilogue(first, rows, c);
  }
#else
  const int64_t groups = (M + kMaxRows - 1) / kMaxRows;
  for (int64_t g = 0; g < groups; g++) {  // even groups: 16 rows are 8 + 8, not 12 + 4
    const int64_t first = M * g / groups;
    const int rows = M * (g + 1) / groups - first;
    // A single sweep fetches a little ahead of itself; of several, the first two fetch half of the next task each.
    const bf16* next = groups == 1 ? w + avx512::kAhead : w + (2 + g) * kBlock * K;
    const auto& products = M <= 3 || g > 1 ? avx512::kProducts<0> : groups == 1 ? avx512::kProducts<2> : avx512::kProducts<1>;
    products[rows - 1](x + first * stride, stride, w, K / 2, c, next);
    epilogue(first, rows, c);
  }
#endif
}
