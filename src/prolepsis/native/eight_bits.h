// Products with weights in 8 bits, for draft heads: half the bytes of bf16 where memory is the limit, twice the products an
// instruction. A weight is scale * (byte - 128), with a scale for every 64 weights along K of a column; rows are brought to 8 bits
// the same way. Sums of 64 are exact integers, and float32 adds them along K: bitwise the same on every instruction set, for any
// number of rows. One scale a column would cost a trained head 1 point of acceptance: its features differ too much in size.
//
// Legend: M rows, R rows of one sweep, G groups of 64 along K.
#pragma once
#include "products.h"

namespace eight {

constexpr int kGroup = 64;

struct WeightGroup {  // of one block of columns; a block is G of them, zeros where K ends before 64
  uint8_t weights[kGroup / 4][kBlock][4];
  float scales[kBlock];
};

struct RowGroup {  // rows lie as [G][M]
  int8_t values[kGroup];
  float scale;
  int32_t offset;  // -128 * sum of values: makes signed weights of unsigned ones
};

inline int64_t groups_of(int64_t K) { return (K + kGroup - 1) / kGroup; }

// One row x [K] to 8 bits, in groups that are `stride` apart; K a multiple of 32.
inline void quantise(const bf16* x, int64_t K, int64_t stride, RowGroup* to) {
  for (int64_t first = 0; first < K; first += kGroup, x += kGroup, to += stride) {
    Lanes values[4], top = lanes::zero(), sum = lanes::zero();
    for (int i = 0; i < 4; i++) {
      values[i] = first + 16 * i < K ? lanes::load(x + 16 * i) : lanes::zero();
      top = lanes::max(top, lanes::max(values[i], lanes::sub(lanes::zero(), values[i])));
    }
    const float highest = lanes::highest(top);
    const Lanes factor = lanes::all(highest > 0 ? 127 / highest : 0);
    for (int i = 0; i < 4; i++) {
      const Lanes whole = lanes::round(lanes::mul(values[i], factor));
      lanes::store_int8(to->values + 16 * i, whole);
      sum = lanes::add(sum, whole);
    }
    to->scale = highest / 127;
    to->offset = -128 * (int)lanes::sum(sum);
  }
}

inline Lanes scaled(Lanes total, Lanes sum, float row, const float* columns) {
  return lanes::fma(sum, lanes::mul(lanes::all(row), lanes::load(columns)), total);
}

#if defined(__AVX512BF16__)

constexpr int kMaxRows = 12;  // 12 sums of integers and 12 of float32

// sums[r] = x[r] * one group of weights.
template <int R>
inline void dot(const RowGroup* x, const WeightGroup& w, Lanes (&sums)[R]) {
  __m512i whole[R];
  for (int r = 0; r < R; r++) whole[r] = _mm512_set1_epi32(x[r].offset);
  for (int k = 0; k < kGroup / 4; k++) {
    const __m512i column = _mm512_loadu_si512(w.weights[k]);
    for (int r = 0; r < R; r++)
      whole[r] = _mm512_dpbusd_epi32(whole[r], column, _mm512_set1_epi32(reinterpret_cast<const int*>(x[r].values)[k]));
  }
  for (int r = 0; r < R; r++) sums[r] = _mm512_cvtepi32_ps(whole[r]);
}

#else

constexpr int kMaxRows = 4;

// Signed products in pairs without saturation: |x| times weights that took the sign of x; both stay within 127.
inline __m256i plus_dot(__m256i sum, __m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <int R>
inline void dot(const RowGroup* x, const WeightGroup& w, Lanes (&sums)[R]) {
  __m256i low[R], high[R];
  for (int r = 0; r < R; r++) low[r] = high[r] = _mm256_setzero_si256();
  for (int k = 0; k < kGroup / 4; k++) {
    const auto* column = reinterpret_cast<const __m256i*>(w.weights[k]);
    const __m256i bias = _mm256_set1_epi8(-128);
    const __m256i left = _mm256_xor_si256(_mm256_loadu_si256(column), bias);
    const __m256i right = _mm256_xor_si256(_mm256_loadu_si256(column + 1), bias);
    for (int r = 0; r < R; r++) {
      const __m256i row = _mm256_set1_epi32(reinterpret_cast<const int*>(x[r].values)[k]);
      low[r] = plus_dot(low[r], left, row);
      high[r] = plus_dot(high[r], right, row);
    }
  }
  for (int r = 0; r < R; r++) sums[r] = {_mm256_cvtepi32_ps(low[r]), _mm256_cvtepi32_ps(high[r])};
}

#endif

constexpr int kAhead = 4;  // groups (4 KiB) that a sweep fetches ahead

// c[r][0:16] = x[r] * one block.
template <int R>
void block_product(const RowGroup* x, int64_t M, const WeightGroup* w, int64_t G, float* c) {
  Lanes totals[R];
  for (auto& total : totals) total = lanes::zero();
  for (int64_t g = 0; g < G; g++, x += M, w++) {
    if constexpr (R > 3)  // too slow for the out-of-order window to cover memory's latency
      for (size_t i = 0; i < sizeof(WeightGroup); i += 64) _mm_prefetch(reinterpret_cast<const char*>(w + kAhead) + i, _MM_HINT_T0);
    Lanes sums[R];
    dot<R>(x, *w, sums);
    for (int r = 0; r < R; r++) totals[r] = scaled(totals[r], sums[r], x[r].scale, w->scales);
  }
  for (int r = 0; r < R; r++) lanes::store(c + r * kTask, totals[r]);
}

using Product = void (*)(const RowGroup*, int64_t, const WeightGroup*, int64_t, float*);
template <int... R>
constexpr auto table(std::integer_sequence<int, R...>) {
  return std::array<Product, sizeof...(R)>{block_product<R + 1>...};
}
inline constexpr auto kProducts = table(std::make_integer_sequence<int, kMaxRows>{});

#if defined(PROLEPSIS_AMX)

constexpr int kTileRows = 16;
constexpr int kFewRows = 4;  // that are faster without tiles

// c[r][0:32] = x[r] * two blocks. A group is as deep as a tile, so tiles hold the sums of one and leave after each.
inline void tile_product(const RowGroup* x, int64_t M, int rows, const WeightGroup* w, int64_t G, float* c) {
  amx::configure(rows);
  alignas(64) int32_t sums[2][kTileRows][kBlock];
  std::fill_n(c, rows * kTask, 0.0f);
  for (int64_t g = 0; g < G; g++, x += M, w++) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(4, x->values, sizeof(RowGroup));
    _tile_loadd(6, w[0].weights, 64);
    _tile_loadd(7, w[G].weights, 64);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    for (int r = 0; r < rows; r++)
      for (int b = 0; b < 2; b++) {
        float* total = c + r * kTask + b * kBlock;
        lanes::store(total, scaled(lanes::load(total), lanes::load_int32(sums[b][r], x[r].offset), x[r].scale, w[b * G].scales));
      }
  }
}

#else

constexpr int kTileRows = kMaxRows;

#endif

// c[r][0:32] = x[r] * two blocks.
inline void product(const RowGroup* x, int64_t M, int rows, const WeightGroup* w, int64_t G, float* c) {
#if defined(PROLEPSIS_AMX)
  if (rows > kFewRows) return tile_product(x, M, rows, w, G, c);
#endif
  for (int block = 0; block < 2; block++) kProducts[rows - 1](x, M, w + block * G, G, c + block * kBlock);
}

// Calls epilogue(first_row, rows, c) with c[rows][32] for every sweep of rows [G][M] times task `task` of packed weights.
template <class Epilogue>
void task_product(const RowGroup* x, int64_t M, const WeightGroup* packed, int64_t G, int64_t task, float* c, const Epilogue& epilogue) {
  const WeightGroup* w = packed + 2 * task * G;
  const int64_t sweeps = (M + kTileRows - 1) / kTileRows;
  for (int64_t i = 0; i < sweeps; i++) {
    const int64_t first = M * i / sweeps;
    const int rows = M * (i + 1) / sweeps - first;
    product(x + first, M, rows, w, G, c);
    epilogue(first, rows, c);
  }
}

}  // namespace eight
