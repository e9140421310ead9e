// Keyed Gumbel noise, as in engine/sampling/noise.py. The same to the bit everywhere where a source is compiled with
// -ffp-contract=off: hash and logarithm use integer and IEEE double operations only, in one order.
#pragma once
#include <bit>
#include <cstdint>

namespace noise {

constexpr uint64_t kStep = 0x9e3779b97f4a7c15, kPositionStep = 0xd1b54a32d192ed03;
constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;  // high part: 40 bits, exact times k

inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// The key of one output position of the sample keyed `key`.
inline uint64_t position_key(uint64_t key, uint64_t position) { return mix(key + (position + 1) * kPositionStep); }

// 2^k * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), by its series.
inline double logarithm(double x) {
  const uint64_t shifted = std::bit_cast<uint64_t>(x) + (0x3ff0000000000000 - 0x3fe6a09e00000000);
  const double k = static_cast<double>(static_cast<int64_t>(shifted >> 52) - 1023);
  const double m = std::bit_cast<double>((shifted & 0xfffffffffffff) + 0x3fe6a09e00000000);
  const double f = m - 1.0, s = f / (f + 2.0), z = s * s;
  double series = 1.0 / 21;
  series = series * z + 1.0 / 19;
  series = series * z + 1.0 / 17;
  series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13;
  series = series * z + 1.0 / 11;
  series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7;
  series = series * z + 1.0 / 5;
  series = series * z + 1.0 / 3;
  series = series * z;
  const double twice = s + s;
  return k * kLn2High + (twice + (twice * series + k * kLn2Low));
}

// On the odd multiples of 2^-53; `key` is that of one position.
inline double uniform_of(uint64_t key, uint64_t token) {
  const uint64_t bits = mix(key + (token + 1) * kStep) >> 12;
  return (static_cast<double>(static_cast<int64_t>(bits)) + 0.5) * 0x1p-52;
}

inline double gumbel_of(uint64_t key, uint64_t token) { return -logarithm(-logarithm(uniform_of(key, token))); }

}  // namespace noise
