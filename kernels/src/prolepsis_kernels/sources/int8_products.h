// Products of rows in 8 bits with stored weights (stored.h). A row is brought to 8 bits in groups of 32 with a scale each; the sum over
// a group is an exact integer, and float32 adds the groups along K, always in the same order: a row has the same bits on every
// instruction set, for any number of other rows. The formats called K do the same with supers of 256 (nested_products.h).
//
// Legend: M rows, R rows of one sweep, G groups of 32 along K.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "dots.h"
#include "stored.h"

namespace stored {

struct alignas(16) RowGroup {
  int8_t values[kGroup];
  float scale, sum;  // sum: scale * that of the values, for formats with a minimum
  int32_t offset;     // -8 * the sum of the values: makes signed weights of unsigned ones
};

// 256 of a row, for the formats called K: these share a header, and their own scales are integers. So the sum over all of them is an
// exact integer too, which needs one scale of the row.
constexpr int kSuperGroups = 8;
struct alignas(64) RowSuper {
  int8_t values[kSuperGroups * kGroup];
  int32_t offsets[2 * kSuperGroups];  // -32 * the sum of 16 values: makes signed codes of those of Q6_K
  int16_t sums[kSuperGroups], halves[2 * kSuperGroups];  // of the values of a group, and of 16
  float scale;
  int16_t reach, half_reach;  // the most that a sum of a group times codes up to 1 can be, and of 16 of it times codes of -1 to 1
};

constexpr int kSweepRows = 6;  // 12 registers of integer sums: of two blocks, or of one on AVX2
#if defined(PROLEPSIS_AMX)
constexpr bool kTiles = true;
#else
constexpr bool kTiles = false;
#endif
constexpr int kMostWithoutTiles = 24;  // more rows are faster on tiles: each sum must leave a tile to be scaled
constexpr int kMostNestedWithoutTiles = 6;  // of formats whose sums stay in tiles eight times as long (nested_tiles.h)
constexpr int kMostTileRows = 16;

constexpr int64_t sweeps_of(int64_t rows, int most) { return (rows + most - 1) / most; }

// The fewest rows of a sweep on tiles: with more sweeps, even shares come closer to the most.
constexpr int kFewestTileRows = [] {
  int64_t fewest = kMostTileRows;
  for (int64_t M = kMostWithoutTiles + 1; M <= 4 * kMostTileRows; M++) fewest = std::min(fewest, M / sweeps_of(M, kMostTileRows));
  return static_cast<int>(fewest);
}();

// M rows stand sweep by sweep, each as [G][rows of the sweep], so that a sweep reads one stream.
struct Sweeps {
  const int64_t M, G;
  const bool on_tiles = kTiles && M > kMostWithoutTiles;
  const int64_t count = on_tiles ? sweeps_of(M, kMostTileRows) : sweeps_of(M, kSweepRows);

  int64_t first(int64_t sweep) const { return sweep == count ? M : M * sweep / count; }
  // The place of group 0 of row t, and how far apart its groups are.
  std::pair<int64_t, int64_t> place(int64_t t) const {
    if (count == 1) return {t, M};
    const int64_t sweep = ((t + 1) * count - 1) / M, from = first(sweep);
    return {from * G + t - from, first(sweep + 1) - from};
  }
};

// A sum over groups, in the one order that all products keep: what the codes of a scale add to it, and what the minimum does.
inline Lanes added(Lanes total, Lanes sum, const RowGroup& x, Lanes scale) {
  return lanes::fma(lanes::mul(sum, lanes::all(x.scale)), scale, total);
}
inline Lanes added(Lanes total, const RowGroup& x, Lanes minimum) { return lanes::fma(minimum, lanes::all(x.sum), total); }

// The highest magnitude of 32 values, or of a multiple of them: without their sign, the bits of bf16 are in order.
inline float highest_magnitude(const bf16* x, int count = kGroup) {
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  __m256i higher = _mm256_setzero_si256();
  for (int i = 0; i < count; i += 16)
    higher = _mm256_max_epu16(higher, _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), magnitude));
  const __m128i eight = _mm_max_epu16(_mm256_castsi256_si128(higher), _mm256_extracti128_si256(higher, 1));
  const __m128i lowest = _mm_minpos_epu16(_mm_xor_si128(eight, _mm_set1_epi16(-1)));  // of the complements
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_slli_epi32(_mm_xor_si128(lowest, _mm_cvtsi32_si128(0xffff)), 16)));
}

// Sums of four bytes next to each other.
inline __m256i sums_by_four(__m256i bytes) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
}

// The sum of 32 bytes.
inline int32_t sum_of(__m256i bytes) {
  __m256i sums = sums_by_four(bytes);
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0b01001110));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0b10110001));
  return _mm_cvtsi128_si32(_mm256_castsi256_si128(sums)) + _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
}

// Of four times 32 bytes: the sums of the first 16 of each, and of the last 16.
struct HalfSums {
  __m128i first, last;

  explicit HalfSums(const __m256i (&bytes)[4]) {
    const __m256i sums = _mm256_hadd_epi32(_mm256_hadd_epi32(sums_by_four(bytes[0]), sums_by_four(bytes[1])),
                                           _mm256_hadd_epi32(sums_by_four(bytes[2]), sums_by_four(bytes[3])));
    first = _mm256_castsi256_si128(sums);
    last = _mm256_extracti128_si256(sums, 1);
  }
};

inline int32_t largest(__m128i v) {
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0b01001110));
  return _mm_cvtsi128_si32(_mm_max_epi32(v, _mm_shuffle_epi32(v, 0b10110001)));
}

// One row x [K] to 8 bits, in groups that are `stride` apart; K a multiple of 32.
inline void quantise(const bf16* x, int64_t K, int64_t stride, RowGroup* to) {
  for (int64_t k = 0; k < K; k += kGroup, to += stride) {
    const float highest = highest_magnitude(x + k);
    const Lanes factor = lanes::all(highest > 0 ? 127 / highest : 0);
    const __m256i values = lanes::as_int8(lanes::mul(lanes::load(x + k), factor), lanes::mul(lanes::load(x + k + 16), factor));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to->values), values);
    const int32_t sum = sum_of(values);
    to->scale = highest / 127;
    to->sum = to->scale * sum;
    to->offset = -8 * sum;
  }
}

// The same in supers of 256; K a multiple of 256.
inline void quantise(const bf16* x, int64_t K, int64_t stride, RowSuper* to) {
  for (int64_t k = 0; k < K; k += kSuperGroups * kGroup, to += stride) {
    const float highest = highest_magnitude(x + k, kSuperGroups * kGroup);
    const Lanes factor = lanes::all(highest > 0 ? 127 / highest : 0);
    __m128i reach = _mm_setzero_si128(), half_reach = reach;
    for (int g = 0; g < kSuperGroups; g += 4) {
      __m256i values[4], sizes[4];
      for (int i = 0; i < 4; i++) {
        const bf16* from = x + k + (g + i) * kGroup;
        values[i] = lanes::as_int8(lanes::mul(lanes::load(from), factor), lanes::mul(lanes::load(from + 16), factor));
        sizes[i] = _mm256_abs_epi8(values[i]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to->values + (g + i) * kGroup), values[i]);
      }
      const HalfSums sums(values), most(sizes);
      const __m128i whole = _mm_add_epi32(sums.first, sums.last);
      const __m128i low = _mm_unpacklo_epi32(sums.first, sums.last), high = _mm_unpackhi_epi32(sums.first, sums.last);
      const auto store = [](void* at, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(at), v); };
      store(to->offsets + 2 * g, _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(low, 5)));
      store(to->offsets + 2 * g + 4, _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(high, 5)));
      store(to->halves + 2 * g, _mm_packs_epi32(low, high));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to->sums + g), _mm_packs_epi32(whole, whole));
      reach = _mm_max_epi32(reach, _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(most.first, most.last), _mm_abs_epi32(whole)), 1));
      half_reach = _mm_max_epi32(half_reach, _mm_max_epi32(most.first, most.last));
    }
    to->scale = highest / 127;
    to->reach = largest(reach);
    to->half_reach = largest(half_reach);
  }
}

// Fetches the next task into L2, a little with each of `calls` calls, so that memory is at work all the time.
class Stream {
 public:
  Stream(const uint8_t* task, int64_t bytes, int64_t calls) : next_(task), due_(task), each_((bytes + calls - 1) / calls) {}

  void fetch_some() {
    for (due_ += each_; next_ < due_; next_ += 64) _mm_prefetch(reinterpret_cast<const char*>(next_), _MM_HINT_T1);
  }

 private:
  const uint8_t *next_, *due_;
  const int64_t each_;
};

// c[r][0:32] = x[r] * two blocks of weights of G groups.
using Product = void (*)(const RowGroup* x, const uint8_t* blocks, int64_t G, float* c, Stream& ahead);
Product product_of(Format format, int rows);  // rows: 1 to kSweepRows

// The same on tiles (int8_tiles.h), for blocks that are spread before; rows: kFewestTileRows to kMostTileRows.
Product tile_product_of(Format format, int rows);
const uint8_t* spread(Format format, const uint8_t* blocks, int64_t G);  // in memory of this thread, until its next call

// c[r][0:32] += x[s][r] * two blocks of weights in a nested format, for M rows. Fetches the next task, which lies behind.
void nested_product(Format format, const RowSuper* x, int64_t M, const uint8_t* blocks, int64_t G, float* c);

// Does `rounds` rounds of this build's product of bytes on registers; returns its multiply-adds, which bound those of all products.
int64_t multiply_registers(int64_t rounds);
// The same of products of `rows` rows with a few tasks that stay in cache.
int64_t multiply_in_cache(Format format, int64_t rows, int64_t rounds);

// Calls epilogue(0, M, c) with c[M][32] of `x` times two blocks of weights in a nested format.
template <class Epilogue>
void task_product(Format format, const RowSuper* x, int64_t M, int64_t G, const uint8_t* blocks, const Epilogue& epilogue) {
  static thread_local std::vector<float> memory;
  memory.assign(M * kTask, 0);
  nested_product(format, x, M, blocks, G, memory.data());
  epilogue(0, M, memory.data());
}

// Calls epilogue(first_row, rows, c) with c[rows][32] for every sweep of `x` times two blocks of weights, `bytes` in all.
template <class Epilogue>
void task_product(Format format, const RowGroup* x, const Sweeps& sweeps, const uint8_t* blocks, int64_t bytes, float* c,
                  const Epilogue& epilogue) {
  const uint8_t* weights = blocks;
  auto product_of_rows = product_of;
  if constexpr (kTiles)
    if (sweeps.on_tiles) weights = spread(format, blocks, sweeps.G), product_of_rows = tile_product_of;
  Stream ahead(blocks + bytes, bytes, sweeps.count * sweeps.G * (sweeps.on_tiles ? 2 : 2 / kTogether));
  for (int64_t sweep = 0, first = 0, end; sweep < sweeps.count; sweep++, first = end) {
    end = sweeps.first(sweep + 1);
    product_of_rows(format, end - first)(x + first * sweeps.G, weights, sweeps.G, c, ahead);
    epilogue(first, end - first, c);
  }
}

}  // namespace stored
