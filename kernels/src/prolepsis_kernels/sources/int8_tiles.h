// Products of many rows in 8 bits on AMX tiles. The weights of a task are spread once for all sweeps: signed codes of a byte, scales in
// float32. A tile sums over the codes of a group; the sums leave it to be added in float32, in the order of int8_products.h.
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "int8_products.h"
#include "products.h"

namespace stored::tiles {

template <bool Minimum>
struct alignas(64) Spread {  // a group of 16 columns
  static constexpr bool kMinimum = Minimum;
  uint8_t codes[kQuads][64];
  float factors[1 + Minimum][kBlock];  // the scale, then the minimum
};
template <class L>
using SpreadOf = Spread<L::kMinimum>;

// Spreads the two blocks of a task into memory of this thread.
template <class L>
const uint8_t* spread(const uint8_t* blocks, int64_t G) {
  static thread_local std::vector<SpreadOf<L>> memory;
  if ((int64_t)memory.size() < 2 * G) memory.resize(2 * G);
  auto* to = memory.data();
  for (int b = 0; b < 2; b++, blocks += L::block_bytes(G))
    for (int64_t g = 0; g < G; g++, to++) {
      for (int k = 0; k < kQuads; k++) lanes::store_bytes(to->codes[k], lanes::minus(quad_of<L>(blocks + g * L::kCodeBytes, k), L::kOffset));
      const Scales<L> scales(blocks + G * L::kCodeBytes, g);
      lanes::store(to->factors[0], scales.scale[0]);
      if (L::kMinimum) lanes::store(to->factors[1], scales.minimum);
    }
  return reinterpret_cast<const uint8_t*>(memory.data());
}

// Makes sums[r][0:16] of R rows of a group and its codes.
template <int R, class Group>
inline void sum_up(const RowGroup* x, const Group& group, int32_t (&sums)[R][kBlock]) {
  _tile_zero(0);
  _tile_loadd(4, x->values, sizeof(RowGroup));
  _tile_loadd(6, group.codes, 64);
  _tile_dpbssd(0, 4, 6);
  _tile_stored(0, sums, 64);
}

// c[r][0:32] = x[r] * two spread blocks.
template <int R, class Group>
void product(const RowGroup* rows, const uint8_t* blocks, int64_t G, float* c, Stream& ahead) {
  amx::configure_bytes(R, kGroup);
  alignas(64) int32_t sums[R][kBlock];
  const auto* group = reinterpret_cast<const Group*>(blocks);
  for (int b = 0; b < 2; b++) {
    Lanes totals[R];
    for (auto& total : totals) total = lanes::zero();
    for (int64_t g = 0; g < G; g++, group++) {
      const RowGroup* x = rows + g * R;
      ahead.fetch_some();
      sum_up<R>(x, *group, sums);
      const Lanes scale = lanes::load(group->factors[0]);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) totals[r] = added(totals[r], lanes::load_int32(sums[r]), x[r], scale);
      if constexpr (Group::kMinimum) {
        const Lanes minimum = lanes::load(group->factors[1]);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) totals[r] = added(totals[r], x[r], minimum);
      }
    }
    for (int r = 0; r < R; r++) lanes::store(c + r * kTask + b * kBlock, totals[r]);
  }
}

template <class Group, int... R>
constexpr auto table(std::integer_sequence<int, R...>) {
  return std::array<Product, sizeof...(R)>{product<kFewestTileRows + R, Group>...};
}
template <class Group>
constexpr auto kProducts = table<Group>(std::make_integer_sequence<int, kMostTileRows - kFewestTileRows + 1>{});

}  // namespace stored::tiles
