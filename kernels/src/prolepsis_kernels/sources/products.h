// Products of a few bf16 rows with packed bf16 weights. Every row is summed in one fixed order for any number of rows.
//
// Legend: R rows, K contraction (multiple of 32).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#if defined(__AVX512BF16__)
#include "products_bf16.h"
#else
#include "products_float.h"
#endif

namespace kernel {

template <class X>
using Product = void (*)(const X*, int64_t, const bf16*, int64_t, float*, int64_t, const bf16*);
template <class X, int Fetch, int... R>
constexpr auto table(std::integer_sequence<int, R...>) {
  return std::array<Product<X>, sizeof...(R)>{product<R + 1, Fetch, X>...};
}
template <class X, int Fetch>
static constexpr auto kProducts = table<X, Fetch>(std::make_integer_sequence<int, kMaxRows>{});

}  // namespace kernel

// Fetches `bytes` from `first` on into L2.
inline void fetch(const void* first, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(static_cast<const char*>(first) + i, _MM_HINT_T1);
}

// Fetches the kTask values at `first` into L1 to be written.
inline void fetch_to_write(const float* first) {
  for (int i = 0; i < kTask; i += 16) __builtin_prefetch(first + i, 1);
}

#ifdef PROLEPSIS_AMX
#include "amx.h"
#endif

// Calls epilogue(first_row, rows, c) with c[rows][32] for every group of rows of x [M, K] times the two blocks at w.
template <class Epilogue>
void task_product(const bf16* x, int64_t stride, int64_t M, const bf16* w, int64_t K, float* c, const Epilogue& epilogue) {
#ifdef PROLEPSIS_AMX
  for (int64_t first = 0; first < M; first += amx::kRows) {
    const int rows = std::min<int64_t>(amx::kRows, M - first);
    amx::product(x + first * stride, stride, rows, w, K, c, kTask, first == 0 ? w + kTask * K : nullptr);
    epilogue(first, rows, c);
  }
#else
  const int64_t groups = (M + kernel::kMaxRows - 1) / kernel::kMaxRows;
  for (int64_t g = 0; g < groups; g++) {  // even groups: 16 rows are 8 + 8, not 12 + 4
    const int64_t first = M * g / groups;
    const int rows = M * (g + 1) / groups - first;
    // A single sweep fetches a little ahead of itself; of several, the first two fetch half of the next task each.
    const bf16* next = groups == 1 ? w + kernel::kAhead : w + (2 + g) * kBlock * K;
    const auto& products = M <= 3 || g > 1 ? kernel::kProducts<bf16, 0> : groups == 1 ? kernel::kProducts<bf16, 2> : kernel::kProducts<bf16, 1>;
    products[rows - 1](x + first * stride, stride, w, K / 2, c, kTask, next);
    epilogue(first, rows, c);
  }
#endif
}
