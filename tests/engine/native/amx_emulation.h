// AMX tiles in plain C++, after Intel's description of the instructions, so that any machine can check the tile indexing.
#pragma once
#include <cstdint>
#include <cstring>

namespace emulation {

struct Tile {
  int rows = 0, bytes = 0;
  alignas(64) unsigned char data[16][64] = {};
};
inline thread_local Tile tiles[8];

inline float widen(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline void configure(const void* config) {
  const auto* c = static_cast<const unsigned char*>(config);
  for (int t = 0; t < 8; t++) {
    std::memcpy(&tiles[t].bytes, c + 16 + 2 * t, 2);
    tiles[t].rows = c[48 + t];
  }
}

inline void load(int t, const void* from, int64_t stride) {
  for (int r = 0; r < tiles[t].rows; r++) std::memcpy(tiles[t].data[r], static_cast<const char*>(from) + r * stride, tiles[t].bytes);
}

inline void store(int t, void* to, int64_t stride) {
  for (int r = 0; r < tiles[t].rows; r++) std::memcpy(static_cast<char*>(to) + r * stride, tiles[t].data[r], tiles[t].bytes);
}

inline void multiply(int c, int a, int b) {
  for (int m = 0; m < tiles[c].rows; m++)
    for (int n = 0; n < tiles[c].bytes / 4; n++) {
      float sum;
      std::memcpy(&sum, tiles[c].data[m] + 4 * n, 4);
      for (int k = 0; k < tiles[a].bytes / 4; k++)
        for (int half = 0; half < 2; half++) {
          uint16_t x, y;
          std::memcpy(&x, tiles[a].data[m] + 4 * k + 2 * half, 2);
          std::memcpy(&y, tiles[b].data[k] + 4 * n + 2 * half, 2);
          sum += widen(x) * widen(y);
        }
      std::memcpy(tiles[c].data[m] + 4 * n, &sum, 4);
    }
}

// Signed bytes of a times bytes of b.
template <class Byte>
inline void multiply_bytes(int c, int a, int b) {
  for (int m = 0; m < tiles[c].rows; m++)
    for (int n = 0; n < tiles[c].bytes / 4; n++) {
      int32_t sum;
      std::memcpy(&sum, tiles[c].data[m] + 4 * n, 4);
      for (int k = 0; k < tiles[a].bytes; k++) sum += int8_t(tiles[a].data[m][k]) * Byte(tiles[b].data[k / 4][4 * n + k % 4]);
      std::memcpy(tiles[c].data[m] + 4 * n, &sum, 4);
    }
}

}  // namespace emulation

#define _tile_loadconfig(c) emulation::configure(c)
#define _tile_release() ((void)0)
#define _tile_zero(t) std::memset(emulation::tiles[t].data, 0, sizeof(emulation::tiles[t].data))
#define _tile_loadd(t, from, stride) emulation::load(t, from, stride)
#define _tile_stored(t, to, stride) emulation::store(t, to, stride)
#define _tile_dpbf16ps(c, a, b) emulation::multiply(c, a, b)
#define _tile_dpbssd(c, a, b) emulation::multiply_bytes<int8_t>(c, a, b)
#define _tile_dpbsud(c, a, b) emulation::multiply_bytes<uint8_t>(c, a, b)
