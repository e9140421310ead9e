// The products of int8_products.h for every format and number of rows: compiled apart, as they take the most time to compile.
#include "int8_products.h"

#include <array>

#if defined(PROLEPSIS_AMX)
#include "int8_tiles.h"
#endif
#include "products.h"

namespace stored {

namespace {

// The integer at which the sum over scale `i` of a group starts.
template <class L>
inline int32_t start_of(const RowGroup& x, int i) {
  return L::kMinimum ? 0 : (L::kScales == 1 ? x.offset : x.halves[i]) * (L::kOffset / 8);
}

#if defined(__AVX512VNNI__)

constexpr int kTogether = 2;  // blocks that share what a sweep loads of its rows

using Sums = __m512i;  // of 16 columns

template <class L>
inline Sums sums_from(int32_t start) { return _mm512_set1_epi32(start); }
inline Lanes as_float(Sums sums) { return _mm512_cvtepi32_ps(sums); }

// sums += four codes of each column times four values of a row.
template <class L>
inline void add_dot(Sums& sums, Bytes codes, int32_t row, int) { sums = _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(row)); }

#else

constexpr int kTogether = 1;

#if defined(__AVXVNNI__)

using Half = __m256i;  // of the sums: of 8 columns

template <class L>
inline Half half_from(int32_t start) { return _mm256_set1_epi32(start); }
inline __m256 as_float(Half half) { return _mm256_cvtepi32_ps(half); }

// sums += four codes of each column times four values of a row.
template <class L>
inline void add_dot(Half& sums, __m256i codes, __m256i x, int) { sums = _mm256_dpbusd_avx_epi32(sums, codes, x); }

#else

struct Half {  // of the sums: of 8 columns
  __m256i sums, pairs;  // int32; int16, of the products that are not yet in `sums`
};

template <class L>
inline Half half_from(int32_t start) {
  return {_mm256_set1_epi32(L::kBits == 8 ? 0 : start), _mm256_setzero_si256()};  // codes of 8 bits lose their offset below
}
inline __m256 as_float(const Half& half) { return _mm256_cvtepi32_ps(half.sums); }

// Quads of which two products each, of codes up to 2^Bits - 1 and values up to 127, add up within int16.
template <int Bits>
constexpr int kQuadsOfPairs = Bits == 8 ? 1 : 32767 / (2 * 127 * ((1 << Bits) - 1));

// A sum that is made where it stands: the compiler would first make all products of a group, which leaves too few registers.
inline __m256i at_once(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

// sums += four codes of each column times four values of a row; quad k of a group. Codes of 8 bits become signed, and give their sign
// to the values, as two products of 255 would overflow int16.
template <class L>
inline void add_dot(Half& half, __m256i codes, __m256i x, int k) {
  constexpr int kRun = kQuadsOfPairs<L::kBits>;
  if constexpr (L::kBits == 8) {
    codes = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    x = _mm256_sign_epi8(x, codes);
    codes = _mm256_abs_epi8(codes);
  }
  const __m256i products = _mm256_maddubs_epi16(codes, x);
  half.pairs = k % kRun == 0 ? products : at_once(_mm256_add_epi16(half.pairs, products));
  if (k % kRun == kRun - 1) half.sums = at_once(_mm256_add_epi32(half.sums, _mm256_madd_epi16(half.pairs, _mm256_set1_epi16(1))));
}

#endif

struct Sums {
  Half low, high;
};

template <class L>
inline Sums sums_from(int32_t start) { return {half_from<L>(start), half_from<L>(start)}; }
inline Lanes as_float(const Sums& s) { return {as_float(s.low), as_float(s.high)}; }

template <class L>
inline void add_dot(Sums& sums, Bytes codes, int32_t row, int k) {
  const __m256i x = _mm256_set1_epi32(row);
  add_dot<L>(sums.low, codes.low, x, k);
  add_dot<L>(sums.high, codes.high, x, k);
}

#endif

// Fetches codes and scales of group g of a block.
template <class L>
inline void fetch_group(const uint8_t* block, int64_t g, int64_t G) {
  constexpr int kScaleBytes = L::kSuperBytes / L::kSuper;  // with the group's part of a header
  fetch(block + g * L::kCodeBytes, L::kCodeBytes);
  fetch(block + G * L::kCodeBytes + g * kScaleBytes, kScaleBytes);
}

// totals[b][r] += x[r] * group g of block b.
template <class L, int R>
inline void add_group(const RowGroup* x, const uint8_t* blocks, int64_t g, int64_t G, Lanes (&totals)[kTogether][R]) {
  constexpr int kEach = kQuads / L::kScales;
  const uint8_t* codes[kTogether];
  for (int b = 0; b < kTogether; b++) codes[b] = blocks + b * L::block_bytes(G) + g * L::kCodeBytes;
  const auto scales = [&](int b) { return Scales<L>(blocks + b * L::block_bytes(G) + G * L::kCodeBytes, g); };
#pragma GCC unroll 2
  for (int i = 0; i < L::kScales; i++) {
    Sums sums[kTogether][R];
    for (auto& block : sums)
      for (int r = 0; r < R; r++) block[r] = sums_from<L>(start_of<L>(x[r], i));
#pragma GCC unroll 8
    for (int k = i * kEach; k < (i + 1) * kEach; k++) {
      Bytes quads[kTogether];
      for (int b = 0; b < kTogether; b++) quads[b] = quad_of<L>(codes[b], k);
      for (int r = 0; r < R; r++)
        for (int b = 0; b < kTogether; b++)
          add_dot<L>(sums[b][r], quads[b], reinterpret_cast<const int*>(x[r].values)[k], k);
    }
    for (int b = 0; b < kTogether; b++) {
      const Lanes scale = scales(b).scale[i];
      for (int r = 0; r < R; r++) totals[b][r] = added(totals[b][r], as_float(sums[b][r]), x[r], scale);
    }
  }
  if constexpr (L::kMinimum)
    for (int b = 0; b < kTogether; b++) {
      const Lanes minimum = scales(b).minimum;
      for (int r = 0; r < R; r++) totals[b][r] = added(totals[b][r], x[r], minimum);
    }
}

// c[r][0:32] = x[r] * two blocks.
template <class L, int R>
void sweep_product(const RowGroup* rows, const uint8_t* blocks, int64_t G, float* c, Ahead ahead) {
  for (int first = 0; first < 2; first += kTogether, blocks += L::block_bytes(G), ahead.task += L::block_bytes(G)) {
    Lanes totals[kTogether][R];
    for (auto& block : totals)
      for (auto& total : block) total = lanes::zero();
    for (int64_t g = 0, next = ahead.sweep; g < G; g++) {
      if (g == next) {
        for (int b = 0; b < kTogether; b++) fetch_group<L>(ahead.task + b * L::block_bytes(G), g, G);
        next += ahead.sweeps;
      }
      add_group<L>(rows + g * R, blocks, g, G, totals);
    }
    for (int b = 0; b < kTogether; b++)
      for (int r = 0; r < R; r++) lanes::store(c + r * kTask + (first + b) * kBlock, totals[b][r]);
  }
}

template <class L, int... R>
constexpr auto table(std::integer_sequence<int, R...>) {
  return std::array<Product, sizeof...(R)>{sweep_product<L, R + 1>...};
}
template <class L>
constexpr auto kProducts = table<L>(std::make_integer_sequence<int, kSweepRows>{});

}  // namespace

Product product_of(Format format, int rows) {
  return with_layout(format, [&](auto layout) -> Product {
    return kProducts<decltype(layout)>[rows - 1];
  });
}

#if defined(PROLEPSIS_AMX)
Product tile_product_of(Format format, int rows) {
  return with_layout(format, [&](auto layout) -> Product { return tiles::kProducts<tiles::SpreadOf<decltype(layout)>>[rows - kFewestTileRows]; });
}

const uint8_t* spread(Format format, const uint8_t* blocks, int64_t G) {
  return with_layout(format, [&](auto layout) { return tiles::spread<decltype(layout)>(blocks, G); });
}
#endif

}  // namespace stored
