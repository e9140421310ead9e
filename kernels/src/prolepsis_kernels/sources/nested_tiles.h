// The products of nested_products.h for many rows on AMX tiles. Two planes of bytes take the scales in: scale * code = 8 * high + low, or
// 256 * high + low for Q6_K, with bytes high and low. So a tile sums a plane over all 256 weights of a super, exactly, and only then
// its sums leave it: I = 8 * sum of highs + sum of lows.
#pragma once
#include "nested_products.h"

namespace stored {

constexpr int kSteps = kSuperGroups / 2;  // of 64 along K, which a tile holds

template <class L>
struct alignas(64) Planes {
  uint8_t codes[2][kSuperGroups][kQuads][64];  // high, low
  Ends<L> ends;

  void spread(const StoredSuper<L>& from, Stream& ahead) {
    for (int g = 0; g < kSuperGroups; g++) {
      ahead.fetch_some();
      if constexpr (L::kMinimum)
        spread_group(from, g);
      else
#pragma GCC unroll 2
        for (int i = 0; i < L::kScales; i++) spread_signed(from, g, i);
    }
    ends = from.ends();
  }

  // A scale of 6 bits is 8 * a + b, and a code times a or b is a byte, so that one product of int16 takes two codes.
  void spread_group(const StoredSuper<L>& from, int g) {
    const Bytes scale = from.scale(g, 0), scales = lanes::pairs(scale, scale);
    const Bytes high = lanes::bits<7>(scales, 3), low = lanes::bits<7>(scales, 0);
#pragma GCC unroll 8
    for (int k = 0; k < kQuads; k++) {
      const Bytes quad = from.quad(g, k);
      lanes::store_bytes(codes[0][g][k], lanes::mul_int16(quad, high));
      lanes::store_bytes(codes[1][g][k], lanes::mul_int16(quad, low));
    }
  }

  // scale * (code - 32) takes 14 bits with its sign: the products of even and of odd codes are made in int16, then split.
  void spread_signed(const StoredSuper<L>& from, int g, int i) {
    constexpr int kEach = kQuads / L::kScales;
    const Bytes scale = from.scale(g, i), both = lanes::pairs(scale, scale);
    const Bytes odd_scale = lanes::shift_left<8>(both), even_scale = lanes::low_bytes(both, lanes::zero_bytes());
    const Bytes offset = lanes::shift_left<5>(both);
#pragma GCC unroll 8
    for (int k = i * kEach; k < (i + 1) * kEach; k++) {
      const Bytes quad = from.quad(g, k);
      const Bytes even = lanes::sub_int16(lanes::byte_products(quad, even_scale), offset);
      const Bytes odd = lanes::sub_int16(lanes::byte_products(quad, odd_scale), offset);
      lanes::store_bytes(codes[0][g][k], lanes::high_bytes(even, odd));
      lanes::store_bytes(codes[1][g][k], lanes::low_bytes(even, odd));
    }
  }
};

using TileSums = int32_t[2][2][kMostTileRows][kBlock];  // of a block and a plane

// Makes the sums of the rows that tiles are set up for and a super of two blocks.
template <class L>
inline void multiply_planes(const RowSuper* x, const Planes<L>* planes, TileSums& sums, Stream& ahead) {
  asm volatile("" : : : "memory");  // the compiler does not know that tiles read what was spread
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int step = 0; step < kSteps; step++) {
    _tile_loadd(4, x->values + 64 * step, sizeof(RowSuper));
    _tile_loadd(5, planes[0].codes[0][2 * step], 64);
    if constexpr (L::kMinimum)
      _tile_dpbsud(0, 4, 5);
    else
      _tile_dpbssd(0, 4, 5);  // the highs of Q6_K have a sign
    _tile_loadd(6, planes[0].codes[1][2 * step], 64);
    _tile_dpbsud(1, 4, 6);
    _tile_loadd(7, planes[1].codes[0][2 * step], 64);
    if constexpr (L::kMinimum)
      _tile_dpbsud(2, 4, 7);
    else
      _tile_dpbssd(2, 4, 7);
    _tile_loadd(5, planes[1].codes[1][2 * step], 64);
    _tile_dpbsud(3, 4, 5);
    for (int i = 0; i < 4; i++) ahead.fetch_some();
  }
  _tile_stored(0, sums[0][0], 64);
  _tile_stored(1, sums[0][1], 64);
  _tile_stored(2, sums[1][0], 64);
  _tile_stored(3, sums[1][1], 64);
}

// c[r][0:32] += what the sums of `rows` rows make.
template <class L>
inline void add_sums(const RowSuper* x, int rows, const Planes<L>* planes, const TileSums& sums, float* c, Stream& ahead) {
  for (int b = 0; b < 2; b++) {
    const Ends<L> ends = planes[b].ends;
    for (int r = 0; r < rows; r++) {
      const auto of_plane = [&](int plane) { return lanes::load_bytes(reinterpret_cast<const uint8_t*>(sums[b][plane][r])); };
      const Bytes whole = lanes::add_int32(lanes::shift_int32<L::kMinimum ? 3 : 8>(of_plane(0)), of_plane(1));
      float* to = c + r * kTask + b * kBlock;
      ahead.fetch_some();
      lanes::store(to, ends.added(lanes::load(to), whole, x[r]));
    }
  }
}

// As `nested_product`. Rows that are short of the last sweep's are read past the end, where x has room, and dropped.
template <class L>
void multiply_nested_on_tiles(const RowSuper* x, int64_t M, const uint8_t* blocks, int64_t G, float* c) {
  static thread_local Planes<L> planes[2];
  alignas(64) TileSums sums;
  const int64_t second = L::block_bytes(G), sweeps = sweeps_of(M, kMostTileRows), each = (M - 1) / sweeps + 1, supers = G / kSuperGroups;
  Stream ahead(blocks + 2 * second, 2 * second, supers * (2 * kSuperGroups + 4 * kSteps * sweeps + 2 * M));
  amx::configure_bytes(each, 64);
  for (int64_t s = 0; s < supers; s++, x += M) {
    planes[0].spread({blocks, s, G}, ahead);
    planes[1].spread({blocks + second, s, G}, ahead);
    for (int64_t first = 0; first < M; first += each) {
      multiply_planes(x + first, planes, sums, ahead);
      add_sums(x + first, std::min(each, M - first), planes, sums, c + first * kTask, ahead);
    }
  }
}

}  // namespace stored
