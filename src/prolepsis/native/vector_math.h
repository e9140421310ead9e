// Elementwise pieces of a decoder layer, each with one order of summation.
#pragma once
#include <cmath>

#include "lanes.h"

constexpr float kLog2e = 1.44269504f;

// exp for x <= 88: 2^n times a polynomial on [-0.5 ln 2, 0.5 ln 2], relative error under 2e-7; very negative x give 0.
inline Lanes exp_of(Lanes x) {
  const Lanes n = lanes::round(lanes::mul(x, lanes::all(kLog2e)));
  Lanes f = lanes::fnma(n, lanes::all(0.693145751953125f), x);
  f = lanes::fnma(n, lanes::all(1.428606765330187e-6f), f);
  Lanes p = lanes::all(1.0f / 720);
  for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = lanes::fma(p, f, lanes::all(c));
  return lanes::scale_by_power(p, n);
}

// 2^x for x <= 0, relative error under 3e-6: for what is rounded to bf16. The polynomial is the best of its degree on [-0.5, 0.5].
inline Lanes power_of_two(Lanes x) {
  const Lanes n = lanes::round(x), f = lanes::sub(x, n);
  Lanes p = lanes::all(0.00957004f);
  for (float c : {0.05591772f, 0.24024745f, 0.69312183f, 0.99999926f}) p = lanes::fma(p, f, lanes::all(c));
  return lanes::scale_by_power(p, n);
}

inline Lanes silu(Lanes x) {
  const Lanes e = exp_of(lanes::sub(lanes::zero(), lanes::max(x, lanes::all(-80.0f))));
  return lanes::mul(x, lanes::reciprocal(lanes::add(lanes::all(1.0f), e)));
}

// 1 / rms of `size` float32 or bf16 values, a multiple of 16.
template <class Value>
inline float inverse_rms(const Value* source, float eps, int64_t size) {
  Lanes sum = lanes::zero();
  for (int64_t i = 0; i < size; i += 16) {
    const Lanes v = lanes::load(source + i);
    sum = lanes::fma(v, v, sum);
  }
  return 1.0f / std::sqrt(lanes::sum(sum) / size + eps);
}

// target = source / rms(source) * weight in bf16; size a multiple of 16.
template <class Value>
inline void rms_norm(const Value* source, const float* weight, float eps, int64_t size, bf16* target) {
  const Lanes scale = lanes::all(inverse_rms(source, eps, size));
  for (int64_t i = 0; i < size; i += 16)
    lanes::store_bf16(target + i, lanes::mul(lanes::mul(lanes::load(source + i), scale), lanes::load(weight + i)));
}

// One head in place: optional RMS norm (Qwen3), then rotation of the two halves by the position's angles.
inline void norm_and_rotate(float* head, int64_t size, const float* norm, float eps, const float* cosine, const float* sine) {
  if (norm) {
    const Lanes scale = lanes::all(inverse_rms(head, eps, size));
    for (int64_t i = 0; i < size; i += 16)
      lanes::store(head + i, lanes::mul(lanes::mul(lanes::load(head + i), scale), lanes::load(norm + i)));
  }
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const Lanes a = lanes::load(head + i), b = lanes::load(head + half + i);
    const Lanes c = lanes::load(cosine + i), s = lanes::load(sine + i);
    lanes::store(head + i, lanes::fnma(b, s, lanes::mul(a, c)));
    lanes::store(head + half + i, lanes::fma(a, s, lanes::mul(b, c)));
  }
}
