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
constexpr int64_t kTileBytes = 1024;

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

// GCC's intrinsic names only the first 8 bytes as what it reads, so the compiler might leave the others unwritten.
inline void load_config(const TileConfig& config) {
  asm volatile("" : : "m"(config));
  _tile_loadconfig(&config);
}

inline thread_local int configured = 0;  // rows that this thread's tiles are set up for; of bytes -1000 * their depth - rows

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
  load_config(config);
}

// Sets tiles 0-3 up for int32 sums of up to 16 rows, 4 for rows and 5-7 for weights of `depth` bytes along K.
inline void configure_bytes(int rows, int depth) {
  const int key = -1000 * depth - rows;
  if (configured == key) return;
  configured = key;
  allowed();
  alignas(64) TileConfig config = {};
  config.palette = 1;
  for (int t = 0; t < 8; t++) config.bytes[t] = t == 4 ? depth : 64;
  for (int t = 0; t < 5; t++) config.rows[t] = rows;
  for (int t = 5; t < 8; t++) config.rows[t] = depth / 4;
  load_config(config);
}

// Gives the tile state back, so that the kernel need not save it; at the end of a thread's part of a pass.
inline void release() {
  if (configured) _tile_release();
  configured = 0;
}

// Sets up tiles for up to 32 rows; their sums begin as `from` [rows][32], or as zeros where that is missing.
inline void begin(int rows, const float* from = nullptr) {
  configure(rows);
  const bool lower = rows > 16;
  if (from) {
    _tile_loadd(0, from, kTask * 4);
    _tile_loadd(1, from + kBlock, kTask * 4);
    if (!lower) return;
    _tile_loadd(2, from + 16 * kTask, kTask * 4);
    _tile_loadd(3, from + 16 * kTask + kBlock, kTask * 4);
    return;
  }
  _tile_zero(0);
  _tile_zero(1);
  if (!lower) return;
  _tile_zero(2);
  _tile_zero(3);
}

// Adds x [rows, 32] times two blocks of weights, 32 deep: 16 pairs, one tile of weights a block.
inline void step(const bf16* x, int64_t stride, int rows, const bf16* first, const bf16* second) {
  _tile_loadd(4, x, stride * 2);
  _tile_loadd(6, first, 64);
  _tile_loadd(7, second, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (rows <= 16) return;
  _tile_loadd(5, x + 16 * stride, stride * 2);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Writes the sums to c[rows][0:32], whose rows are `width` apart.
inline void end(int rows, float* c, int64_t width) {
  _tile_stored(0, c, width * 4);
  _tile_stored(1, c + kBlock, width * 4);
  if (rows <= 16) return;
  _tile_stored(2, c + 16 * width, width * 4);
  _tile_stored(3, c + 16 * width + kBlock, width * 4);
}

// c[r][0:32] = x[r] * two blocks of weights. Each step also fetches what it reads of `next`, where that is given, into L2.
inline void product(const bf16* x, int64_t stride, int rows, const bf16* w, int64_t K, float* c, int64_t width, const bf16* next) {
  const bf16* second = w + kBlock * K;
  begin(rows);
  for (int64_t k = 0; k < K; k += 32) {
    if (next) fetch(next + k * kTask, 2 * kTileBytes);
    step(x + k, stride, rows, w + k * kBlock, second + k * kBlock);
  }
  end(rows, c, width);
}

}  // namespace amx
