// The same product on AMX tiles: two blocks of 16 columns, one or two tiles of 16 rows.
#pragma once
#ifdef PROLEPSIS_EMULATE_AMX
#include "amx_emulation.h"
#else
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace amx {

constexpr int kRows = 32;

struct __attribute__((packed)) TileConfig {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

// Asks the kernel for tile state; once per thread.
inline bool allowed() {
#ifdef PROLEPSIS_EMULATE_AMX
  return true;
#else
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static thread_local const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#endif
}

inline thread_local int configured = 0;  // rows that this thread's tiles are set up for

// Tiles 0-3: sums, 4-5: rows, 6-7: weights. Configures only when the shape differs from what this thread has.
inline void configure(int rows) {
  if (configured == rows) return;
  configured = rows;
  allowed();
  const int upper = std::min(rows, 16), lower = std::max(rows - 16, 1);
  alignas(64) TileConfig config = {};
  config.palette = 1;
  for (int t = 0; t < 8; t++) config.bytes[t] = 64;
  for (int t : {0, 1, 4}) config.rows[t] = upper;
  for (int t : {2, 3, 5}) config.rows[t] = lower;
  for (int t : {6, 7}) config.rows[t] = 16;
  _tile_loadconfig(&config);
}

// Gives the tile state back, so that the kernel need not save it; at the end of a thread's part of a pass.
inline void release() {
  if (configured) _tile_release();
  configured = 0;
}

inline void product(const bf16* x, int64_t stride, int rows, const bf16* w, int64_t K, float* c) {
  configure(rows);
  const bf16* second = w + 16 * K;
  const bool lower = rows > 16;
  _tile_zero(0);
  _tile_zero(1);
  if (lower) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < K; k += 32) {  // 32 deep: 16 pairs, one tile of weights a block
    _tile_loadd(4, x + k, stride * 2);
    _tile_loadd(6, w + k * 16, 64);
    _tile_loadd(7, second + k * 16, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (lower) {
      _tile_loadd(5, x + 16 * stride + k, stride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, kTask * 4);
  _tile_stored(1, c + kBlock, kTask * 4);
  if (lower) {
    _tile_stored(2, c + 16 * kTask, kTask * 4);
    _tile_stored(3, c + 16 * kTask + kBlock, kTask * 4);
  }
}

}  // namespace amx
