// The products of int8_products.h for every format and number of rows: compiled apart, as they take the most time to compile.
#include "int8_products.h"

#include <array>

#include "products.h"

namespace stored {

namespace {

// The integer at which the sum over scale `i` of a group starts.
template <class L>
inline int32_t start_of(const RowGroup& x, int i) {
  return L::kMinimum ? 0 : (L::kScales == 1 ? x.offset : x.halves[i]) * (L::kOffset / 8);
}

// totals += sums (of each scale's codes and values) in the row's and the columns' scales.
template <class L>
inline Lanes added(Lanes total, const Lanes (&sums)[L::kScales], const RowGroup& x, const Scales<L>& s) {
  for (int i = 0; i < L::kScales; i++) total = lanes::fma(lanes::mul(sums[i], lanes::all(x.scale)), s.scale[i], total);
  return L::kMinimum ? lanes::fma(s.minimum, lanes::all(x.sum), total) : total;
}

#if defined(__AVX512BF16__)

// totals[r] += x[r] * one group of weights.
template <class L, int R>
inline void add_group(const RowGroup* x, const uint8_t* codes, const Scales<L>& s, Lanes (&totals)[R]) {
  constexpr int kEach = kQuads / L::kScales;
  __m512i quads[kQuads];
  for (int i = 0; i < kQuads; i++) quads[i] = quad_of<L>(codes, i);
  for (int r = 0; r < R; r++) {
    const int* values = reinterpret_cast<const int*>(x[r].values);
    Lanes sums[L::kScales];
    for (int i = 0; i < L::kScales; i++) {
      __m512i sum = L::kMinimum ? _mm512_setzero_si512() : _mm512_set1_epi32(start_of<L>(x[r], i));
      for (int k = i * kEach; k < (i + 1) * kEach; k++) sum = _mm512_dpbusd_epi32(sum, quads[k], _mm512_set1_epi32(values[k]));
      sums[i] = _mm512_cvtepi32_ps(sum);
    }
    totals[r] = added<L>(totals[r], sums, x[r], s);
  }
}

#else

// The sums of four products each, as int32; w is unsigned. Of 8 bits pairs would overflow int16, so their nibbles go apart.
template <int Bits>
inline __m256i dot(__m256i w, __m256i x) {
  const __m256i ones = _mm256_set1_epi16(1), mask = _mm256_set1_epi8(15);
  if constexpr (Bits < 8) return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones);
  const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(w, mask), x);
  const __m256i high = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(w, 4), mask), x);
  return _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
}

template <class L, int R>
inline void add_group(const RowGroup* x, const uint8_t* codes, const Scales<L>& s, Lanes (&totals)[R]) {
  constexpr int kEach = kQuads / L::kScales;
  Lanes sums[R][L::kScales];
  for (int i = 0; i < L::kScales; i++) {
    __m256i low[R], high[R];
    for (int r = 0; r < R; r++) low[r] = high[r] = _mm256_set1_epi32(start_of<L>(x[r], i));
    for (int k = i * kEach; k < (i + 1) * kEach; k++) {
      const Bytes quad = quad_of<L>(codes, k);
      for (int r = 0; r < R; r++) {
        const __m256i row = _mm256_set1_epi32(reinterpret_cast<const int*>(x[r].values)[k]);
        low[r] = _mm256_add_epi32(low[r], dot<L::kBits>(quad.low, row));
        high[r] = _mm256_add_epi32(high[r], dot<L::kBits>(quad.high, row));
      }
    }
    for (int r = 0; r < R; r++) sums[r][i] = {_mm256_cvtepi32_ps(low[r]), _mm256_cvtepi32_ps(high[r])};
  }
  for (int r = 0; r < R; r++) totals[r] = added<L>(totals[r], sums[r], x[r], s);
}

#endif

constexpr int kAhead = 16384;  // bytes that a sweep fetches ahead; 4 KiB: 8 rows 3.1 ms a pass's products, 8 and 16: 2.8, none: 6.5

// c[r][0:16] = x[r] * one block.
template <class L, int R>
void block_product(const RowGroup* x, int, const uint8_t* block, int64_t G, float* c) {
  const uint8_t* scales = block + G * L::kCodeBytes;
  Lanes totals[R];
  for (auto& total : totals) total = lanes::zero();
  for (int64_t g = 0; g < G; g++, x += R) {
    const uint8_t* codes = block + g * L::kCodeBytes;
    for (int i = 0; i < L::kCodeBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(codes + kAhead + i), _MM_HINT_T0);
    add_group<L>(x, codes, Scales<L>(scales, g), totals);
  }
  for (int r = 0; r < R; r++) lanes::store(c + r * kTask, totals[r]);
}

#if defined(PROLEPSIS_AMX)

constexpr int kFewRows = 4;  // that are faster without tiles

// A tile holds the sums over one scale's codes and leaves after each, to be added in float32.
template <class L>
void tile_product(const RowGroup* x, int rows, const uint8_t* block, int64_t G, float* c) {
  constexpr int kEach = kQuads / L::kScales;
  const uint8_t* scales = block + G * L::kCodeBytes;
  amx::configure_bytes(rows, 4 * kEach);
  alignas(64) int32_t sums[L::kScales][kSweepRows][kBlock];
  alignas(64) uint8_t codes[kQuads][64];
  for (int r = 0; r < rows; r++) lanes::store(c + r * kTask, lanes::zero());
  for (int64_t g = 0; g < G; g++, x += rows) {
    for (int k = 0; k < kQuads; k++) lanes::store_bytes(codes[k], quad_of<L>(block + g * L::kCodeBytes, k));
    for (int i = 0; i < L::kScales; i++) {
      _tile_zero(0);
      _tile_loadd(4, x->values + 4 * kEach * i, sizeof(RowGroup));
      _tile_loadd(6, codes[kEach * i], 64);
      _tile_dpbsud(0, 4, 6);
      _tile_stored(0, sums[i], 64);
    }
    const Scales<L> s(scales, g);
    for (int r = 0; r < rows; r++) {
      Lanes found[L::kScales];
      for (int i = 0; i < L::kScales; i++) found[i] = lanes::load_int32(sums[i][r], start_of<L>(x[r], i));
      lanes::store(c + r * kTask, added<L>(lanes::load(c + r * kTask), found, x[r], s));
    }
  }
}

#else

constexpr int kFewRows = kSweepRows;

#endif

template <class L, int... R>
constexpr auto table(std::integer_sequence<int, R...>) {
  return std::array<Product, sizeof...(R)>{block_product<L, R + 1>...};
}
template <class L>
constexpr auto kProducts = table<L>(std::make_integer_sequence<int, kFewRows>{});

}  // namespace

Product product_of(Format format, int rows) {
  return with_layout(format, [&](auto layout) -> Product {
#if defined(PROLEPSIS_AMX)
    if (rows > kFewRows) return tile_product<decltype(layout)>;
#endif
    return kProducts<decltype(layout)>[rows - 1];
  });
}

}  // namespace stored
