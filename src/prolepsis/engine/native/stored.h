// Weights as model files store them: codes of 4 to 8 bits with a scale for every 32 (Q6_K: 16) along K, in the formats of ggml. They
// are repacked once, so that 16 columns lie side by side, and take only the memory that they take in the file. This file packs them and gives
// their values; int8_products.h multiplies with them.
//
// A weight is scale * (code - offset) + minimum. In the formats called K a scale is itself a product: of a float16 that 256 weights
// share and 6 or 8 bits of its own.
//
// Legend: K contraction, G groups of 32 along K.
#pragma once
#include <cstdint>
#include <cstring>

#include "lanes.h"
#include "packing.h"

namespace stored {

constexpr int kGroup = 32;
constexpr int kQuads = kGroup / 4;  // of a column's codes in a group; a product of bytes takes four at once

enum class Format : int {  // the numbers are ggml's
  kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14, kBf16 = 30
};

// How a format lies in memory. A block of 16 columns is the codes of its groups, then the scales of its groups.
template <int Bits, int Offset, bool Minimum, int Scales, bool Nested>
struct Layout {
  static constexpr int kBits = Bits, kOffset = Offset, kScales = Scales;  // kScales: of one group
  static constexpr bool kMinimum = Minimum, kNested = Nested;
  static constexpr int kCodeBytes = Bits * kGroup * kBlock / 8;  // of one group
  static constexpr int kSuper = Nested ? 8 : 1;                  // groups that share a header
  static constexpr int kHeader = Nested ? kBlock * 2 * (1 + Minimum) : 0;
  static constexpr int kScaleBytes = kBlock * (Nested ? Scales + Minimum : 2 * (1 + Minimum));  // of one group
  static constexpr int kSuperBytes = kHeader + kSuper * kScaleBytes;

  static constexpr int64_t block_bytes(int64_t G) { return (G * kCodeBytes + G / kSuper * kSuperBytes + 63) / 64 * 64; }
};
using Q4_0 = Layout<4, 8, false, 1, false>;
using Q4_1 = Layout<4, 0, true, 1, false>;
using Q5_0 = Layout<5, 16, false, 1, false>;
using Q5_1 = Layout<5, 0, true, 1, false>;
using Q8_0 = Layout<8, 128, false, 1, false>;
using Q4_K = Layout<4, 0, true, 1, true>;
using Q5_K = Layout<5, 0, true, 1, true>;
using Q6_K = Layout<6, 32, false, 2, true>;

inline bool is_nested(Format format) { return format == Format::kQ4_K || format == Format::kQ5_K || format == Format::kQ6_K; }

// Calls visit(layout) with the layout of `format`: of any one that is nested, of any other than bf16, of either.
template <class Visit>
auto with_nested(Format format, const Visit& visit) {
  switch (format) {
    case Format::kQ4_K: return visit(Q4_K{});
    case Format::kQ5_K: return visit(Q5_K{});
    default: return visit(Q6_K{});
  }
}
template <class Visit>
auto with_plain(Format format, const Visit& visit) {
  switch (format) {
    case Format::kQ4_0: return visit(Q4_0{});
    case Format::kQ4_1: return visit(Q4_1{});
    case Format::kQ5_0: return visit(Q5_0{});
    case Format::kQ5_1: return visit(Q5_1{});
    default: return visit(Q8_0{});
  }
}
template <class Visit>
auto with_layout(Format format, const Visit& visit) { return is_nested(format) ? with_nested(format, visit) : with_plain(format, visit); }

// One group of one column, as read from a file.
struct Group {
  uint8_t codes[kGroup];
  uint16_t scale, minimum;  // float16; of a nested format those that 256 weights share
  uint8_t scales[2];        // of a nested format: 6 bits, or a signed byte
  uint8_t minimum_scale;
};

// Codes [32] of 16 bytes: the low nibbles, then the high ones.
inline void read_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; i++) codes[i] = bytes[i] & 15, codes[i + 16] = bytes[i] >> 4;
}

inline void read_fifth_bits(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < kGroup; i++) codes[i] |= (bytes[i / 8] >> (i % 8) & 1) << 4;
}

// 6-bit scale and minimum of group `j` of 8, packed in 12 bytes.
inline void read_nested(const uint8_t* packed, int j, Group& group) {
  if (j < 4) {
    group.scales[0] = packed[j] & 63;
    group.minimum_scale = packed[j + 4] & 63;
  } else {
    group.scales[0] = (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
    group.minimum_scale = packed[j + 4] >> 4 | packed[j] >> 6 << 4;
  }
}

// Reads group g of a row of a file (ggml-common.h has the structs).
inline Group read_group(Format format, const uint8_t* row, int64_t g) {
  Group group = {};
  const auto half = [](const uint8_t* at) { uint16_t bits; std::memcpy(&bits, at, 2); return bits; };
  const int j = g % 8;  // of a block of 256
  switch (format) {
    case Format::kQ4_0:
      row += g * 18;
      read_nibbles(row + 2, group.codes);
      break;
    case Format::kQ4_1:
      row += g * 20;
      group.minimum = half(row + 2);
      read_nibbles(row + 4, group.codes);
      break;
    case Format::kQ5_0:
      row += g * 22;
      read_nibbles(row + 6, group.codes);
      read_fifth_bits(row + 2, group.codes);
      break;
    case Format::kQ5_1:
      row += g * 24;
      group.minimum = half(row + 2);
      read_nibbles(row + 8, group.codes);
      read_fifth_bits(row + 4, group.codes);
      break;
    case Format::kQ8_0:
      row += g * 34;
      for (int i = 0; i < kGroup; i++) group.codes[i] = row[2 + i] ^ 128;
      break;
    case Format::kQ4_K:
      row += g / 8 * 144;
      group.minimum = half(row + 2);
      read_nested(row + 4, j, group);
      for (int i = 0; i < kGroup; i++) group.codes[i] = row[16 + j / 2 * 32 + i] >> (j % 2 * 4) & 15;
      break;
    case Format::kQ5_K:
      row += g / 8 * 176;
      group.minimum = half(row + 2);
      read_nested(row + 4, j, group);
      for (int i = 0; i < kGroup; i++)
        group.codes[i] = (row[48 + j / 2 * 32 + i] >> (j % 2 * 4) & 15) | (row[16 + i] >> j & 1) << 4;
      break;
    case Format::kQ6_K:
      row += g / 8 * 210;
      for (int i = 0; i < kGroup; i++)
        group.codes[i] = (row[j / 4 * 64 + j % 2 * 32 + i] >> (j % 4 / 2 * 4) & 15) | (row[128 + j / 4 * 32 + i] >> (j % 4 * 2) & 3) << 4;
      std::memcpy(group.scales, row + 192 + 2 * j, 2);
      group.scale = half(row + 208);
      return group;
    case Format::kBf16:
      break;
  }
  group.scale = half(row);
  return group;
}

// Bytes of a group of 32 weights in a file.
inline double file_bytes(Format format) {
  switch (format) {
    case Format::kQ4_0: return 18;
    case Format::kQ4_1: return 20;
    case Format::kQ5_0: return 22;
    case Format::kQ5_1: return 24;
    case Format::kQ8_0: return 34;
    case Format::kQ4_K: return 144 / 8.0;
    case Format::kQ5_K: return 176 / 8.0;
    case Format::kQ6_K: return 210 / 8.0;
    default: return 64;
  }
}

// Writes group g of column `column` into a block of G groups.
template <class L>
void write_group(const Group& group, int64_t g, int64_t G, int column, uint8_t* block) {
  uint8_t* codes = block + g * L::kCodeBytes + column * 4;
  const auto quad = [&](int q) { uint32_t four; std::memcpy(&four, group.codes + 4 * q, 4); return four; };
  const auto store = [&](int at, uint32_t four) { std::memcpy(codes + at, &four, 4); };
  if constexpr (L::kBits == 8) {
    for (int q = 0; q < kQuads; q++) store(q * 64, quad(q));
  } else {
    for (int q = 0; q < kQuads; q += 2) store(q / 2 * 64, (quad(q) & 0x0f0f0f0f) | (quad(q + 1) & 0x0f0f0f0f) << 4);
    constexpr int kHighBits = L::kBits - 4, kTogether = kHighBits ? 8 / kHighBits : kQuads;  // quads whose high bits share a byte
    for (int q = 0; kHighBits && q < kQuads; q += kTogether) {
      uint32_t high = 0;
      for (int i = 0; i < kTogether; i++) high |= (quad(q + i) >> 4 & 0x01010101 * ((1 << kHighBits) - 1)) << i * kHighBits;
      store(256 + q / kTogether * 64, high);
    }
  }
  uint8_t* header = block + G * L::kCodeBytes + g / L::kSuper * L::kSuperBytes;
  uint8_t* scales = header + L::kHeader + g % L::kSuper * L::kScaleBytes;
  const auto put = [&](uint8_t* from, uint16_t half) { std::memcpy(from + 2 * column, &half, 2); };
  put(L::kNested ? header : scales, group.scale);
  if (L::kMinimum) put((L::kNested ? header : scales) + 2 * kBlock, group.minimum);
  if (!L::kNested) return;
  for (int i = 0; i < L::kScales; i++) scales[i * kBlock + column] = group.scales[i];
  if (L::kMinimum) scales[kBlock + column] = group.minimum_scale;
}

// Copies column `a` of a block to column `b` of another. Each line of a block holds equally many bytes of every column.
template <class L>
void copy_column(const uint8_t* from, int a, uint8_t* to, int b, int64_t G) {
  const auto copy = [&](int64_t at, int64_t lines, int width) {
    for (int64_t i = 0; i < lines; i++, at += kBlock * width) std::memcpy(to + at + b * width, from + at + a * width, width);
  };
  copy(0, G * kQuads * L::kBits / 8, 4);
  for (int64_t g = 0; g < G; g += L::kSuper) {
    const int64_t at = G * L::kCodeBytes + g / L::kSuper * L::kSuperBytes;
    copy(at, 1 + L::kMinimum, 2);
    if (L::kNested) copy(at + L::kHeader, L::kSuper * (L::kScales + L::kMinimum), 1);
  }
}

// Scales and minimum of the columns of one group.
template <class L>
struct Scales {
  Lanes scale[L::kScales], minimum;

  // `scales`: those of all groups of the block.
  Scales(const uint8_t* scales, int64_t g) {
    const uint8_t* header = scales + g / L::kSuper * L::kSuperBytes;
    const uint8_t* own = header + L::kHeader + g % L::kSuper * L::kScaleBytes;
    if constexpr (!L::kNested) {
      scale[0] = lanes::load_half(own);
      minimum = L::kMinimum ? lanes::load_half(own + 2 * kBlock) : lanes::zero();
    } else {
      const Lanes shared = lanes::load_half(header);
      for (int i = 0; i < L::kScales; i++)
        scale[i] = lanes::mul(shared, L::kMinimum ? lanes::load_uint8(own) : lanes::load_int8(own + i * kBlock));
      minimum = lanes::zero();
      if (L::kMinimum) minimum = lanes::sub(minimum, lanes::mul(lanes::load_half(header + 2 * kBlock), lanes::load_uint8(own + kBlock)));
    }
  }
};

// Codes 4 * quad to 4 * quad + 3 of a group's 16 columns as bytes, unsigned.
template <class L>
inline Bytes quad_of(const uint8_t* codes, int quad) {
  if constexpr (L::kBits == 8) return lanes::load_bytes(codes + quad * 64);
  Bytes found = lanes::bits<15>(lanes::load_bytes(codes + quad / 2 * 64), quad % 2 * 4);
  if constexpr (L::kBits == 5) found = lanes::join_shifted<1 << 4>(found, lanes::load_bytes(codes + 256), 4 - quad);
  if constexpr (L::kBits == 6) found = lanes::join_shifted<3 << 4>(found, lanes::load_bytes(codes + 256 + quad / 4 * 64), 4 - quad % 4 * 2);
  return found;
}

// Expands a block to bf16 as packing.h wants it; the values are those of scale * (code - offset) + minimum, rounded once.
template <class L>
void expand(const uint8_t* block, int64_t G, bf16* to) {
  const uint8_t* scales = block + G * L::kCodeBytes;
  const Lanes offset = lanes::all(L::kOffset);
  for (int64_t g = 0; g < G; g++) {
    const Scales<L> s(scales, g);
    for (int quad = 0; quad < kQuads; quad++) {
      const Bytes codes = quad_of<L>(block + g * L::kCodeBytes, quad);
      const Lanes scale = s.scale[quad * L::kScales / kQuads];
      const auto value = [&](int i) {
        const Lanes code = lanes::byte_of(codes, i);
        return L::kMinimum ? lanes::fma(code, scale, s.minimum) : lanes::mul(lanes::sub(code, offset), scale);
      };
      lanes::store_pairs(to, value(0), value(1));
      lanes::store_pairs(to + 32, value(2), value(3));
      to += 64;
    }
  }
}

inline void expand_block(Format format, const uint8_t* block, int64_t G, bf16* to) {
  with_layout(format, [&](auto layout) { expand<decltype(layout)>(block, G, to); });
}

}  // namespace stored
