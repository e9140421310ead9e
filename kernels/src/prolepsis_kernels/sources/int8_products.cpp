// The products of int8_products.h for every format and number of rows: compiled apart, as they take the most time to compile.
#include "int8_products.h"

#include <array>

#include "dots.h"
#include "nested_products.h"
#if defined(PROLEPSIS_AMX)
#include "int8_tiles.h"
#include "nested_tiles.h"
#endif
#include "products.h"

namespace stored {

namespace {

// The integer at which the sum over a group starts.
template <class L>
inline int32_t start_of(const RowGroup& x) { return L::kMinimum ? 0 : x.offset * (L::kOffset / 8); }

// totals[b][r] += x[r] * group g of block b.
template <class L, int R>
inline void add_group(const RowGroup* x, const uint8_t* blocks, int64_t g, int64_t G, Lanes (&totals)[kTogether][R]) {
  const Bytes ones = lanes::all_int32(0x10001);
  const uint8_t* codes[kTogether];
  for (int b = 0; b < kTogether; b++) codes[b] = blocks + b * L::block_bytes(G) + g * L::kCodeBytes;
  const auto scales = [&](int b) { return Scales<L>(blocks + b * L::block_bytes(G) + G * L::kCodeBytes, g); };
  Sums sums[kTogether][R];
  for (auto& block : sums)
    for (int r = 0; r < R; r++) block[r] = sums_from<L>(start_of<L>(x[r]));
#pragma GCC unroll 8
  for (int k = 0; k < kQuads; k++) {
    Bytes quads[kTogether];
    for (int b = 0; b < kTogether; b++) quads[b] = quad_of<L>(codes[b], k);
    for (int r = 0; r < R; r++)
      for (int b = 0; b < kTogether; b++) add_dot<L>(sums[b][r], quads[b], reinterpret_cast<const int*>(x[r].values)[k], k, ones);
  }
  for (int b = 0; b < kTogether; b++) {
    const Lanes scale = scales(b).scale[0];
    for (int r = 0; r < R; r++) totals[b][r] = added(totals[b][r], as_float(sums[b][r]), x[r], scale);
  }
  if constexpr (L::kMinimum)
    for (int b = 0; b < kTogether; b++) {
      const Lanes minimum = scales(b).minimum;
      for (int r = 0; r < R; r++) totals[b][r] = added(totals[b][r], x[r], minimum);
    }
}

// c[r][0:32] = x[r] * two blocks.
template <class L, int R>
void sweep_product(const RowGroup* rows, const uint8_t* blocks, int64_t G, float* c, Stream& ahead) {
  for (int first = 0; first < 2; first += kTogether, blocks += L::block_bytes(G)) {
    Lanes totals[kTogether][R];
    for (auto& block : totals)
      for (auto& total : block) total = lanes::zero();
    for (int64_t g = 0; g < G; g++) {
      ahead.fetch_some();
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
  return with_plain(format, [&](auto layout) -> Product {
    return kProducts<decltype(layout)>[rows - 1];
  });
}

void nested_product(Format format, const RowSuper* x, int64_t M, const uint8_t* blocks, int64_t G, float* c) {
  with_nested(format, [&](auto layout) {
    using L = decltype(layout);
#if defined(PROLEPSIS_AMX)
    if (M > kMostNestedWithoutTiles) return multiply_nested_on_tiles<L>(x, M, blocks, G, c);
#endif
    multiply_nested<L>(x, M, blocks, G, c);
  });
}

#if defined(PROLEPSIS_AMX)
Product tile_product_of(Format format, int rows) {
  return with_plain(format, [&](auto layout) -> Product { return tiles::kProducts<tiles::SpreadOf<decltype(layout)>>[rows - kFewestTileRows]; });
}

const uint8_t* spread(Format format, const uint8_t* blocks, int64_t G) {
  return with_plain(format, [&](auto layout) { return tiles::spread<decltype(layout)>(blocks, G); });
}
#endif

#if defined(PROLEPSIS_AMX)
int64_t multiply_registers(int64_t rounds) {
  alignas(64) uint8_t bytes[kMostTileRows][64] = {};
  amx::configure_bytes(kMostTileRows, 64);
  _tile_loadd(4, bytes, 64);
  _tile_loadd(5, bytes, 64);
  for (int64_t i = 0; i < rounds; i++) {
    _tile_dpbusd(0, 4, 5);
    _tile_dpbusd(1, 4, 5);
    _tile_dpbusd(2, 4, 5);
    _tile_dpbusd(3, 4, 5);
  }
  amx::release();
  return rounds * 4 * kMostTileRows * 64 * kBlock;
}
#else
int64_t multiply_registers(int64_t rounds) {
  using L = Q4_K;
  constexpr int kSums = 6 * kTogether;  // as many as hide what a product takes, and no more than stay in registers
  static uint8_t codes[kSums][64];      // not known to the compiler; where it sees into products none may be another's
  static thread_local volatile float kept;
  const Bytes ones = lanes::all_int32(0x10001);
  Sums sums[kSums];
  for (auto& sum : sums) sum = sums_from<L>(0);
  for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 8
    for (int k = 0; k < kQuads; k++)
#pragma GCC unroll 12
      for (int j = 0; j < kSums; j++) add_dot<L>(sums[j], lanes::load_bytes(codes[kScalesLate ? 0 : j]), static_cast<int32_t>(i), k, ones);
  for (auto& sum : sums) kept = lanes::sum(as_float(sum));
  return rounds * kQuads * kSums * 4 * kBlock;
}
#endif

int64_t multiply_in_cache(Format format, int64_t rows, int64_t rounds) {
  constexpr int64_t G = 64, kTasks = 4;  // a depth of 2048
  const int64_t bytes = with_layout(format, [](auto layout) { return 2 * decltype(layout)::block_bytes(G); });
  const std::vector<uint8_t> blocks((kTasks + 1) * bytes);  // the last task is only fetched
  const std::vector<RowSuper> supers(G / kSuperGroups * rows + kMostTileRows);  // of zeros, so sums are narrow
  const std::vector<RowGroup> groups(G * rows);
  const auto drop = [](int64_t, int64_t, const float*) {};
  alignas(64) float c[kMostTileRows * kTask];
  for (int64_t i = 0; i < rounds * kTasks; i++) {
    const uint8_t* task = blocks.data() + i % kTasks * bytes;
    is_nested(format) ? task_product(format, supers.data(), rows, G, task, drop)
                      : task_product(format, groups.data(), Sweeps{rows, G}, task, bytes, c, drop);
  }
  return rounds * kTasks * rows * G * kGroup * kTask;
}

}  // namespace stored
