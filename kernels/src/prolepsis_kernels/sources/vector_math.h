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

inline Lanes sigmoid(Lanes x) {
  const Lanes e = exp_of(lanes::sub(lanes::zero(), lanes::max(x, lanes::all(-80.0f))));
  return lanes::reciprocal(lanes::add(lanes::all(1.0f), e));
}

inline Lanes silu(Lanes x) { return lanes::mul(x, sigmoid(x)); }

// GELU with tanh for the error function (Hendrycks and Gimpel, arXiv 1606.08415), by (1 + tanh u) / 2 = sigmoid(2u).
inline Lanes gelu(Lanes x) {
  const Lanes cubed = lanes::mul(x, lanes::mul(x, x)), u = lanes::fma(cubed, lanes::all(0.044715f), x);
  return lanes::mul(x, sigmoid(lanes::mul(u, lanes::all(2 * 0.7978845608f))));
}

// cap * tanh(x / cap), by tanh u = 2 sigmoid(2u) - 1; to within 1e-6 of the cap.
inline Lanes soft_cap(Lanes x, float cap) {
  const Lanes s = sigmoid(lanes::mul(x, lanes::all(2.0f / cap)));
  return lanes::mul(lanes::fma(s, lanes::all(2.0f), lanes::all(-1.0f)), lanes::all(cap));
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

// values = values / rms(values) * weight.
inline void rms_norm(float* values, const float* weight, float eps, int64_t size) {
  const Lanes scale = lanes::all(inverse_rms(values, eps, size));
  for (int64_t i = 0; i < size; i += 16)
    lanes::store(values + i, lanes::mul(lanes::mul(lanes::load(values + i), scale), lanes::load(weight + i)));
}

// target += factor * source / rms(source) * weight.
inline void add_rms_norm(const float* source, const float* weight, float eps, float factor, int64_t size, float* target) {
  const Lanes scale = lanes::all(factor * inverse_rms(source, eps, size));
  for (int64_t i = 0; i < size; i += 16)
    lanes::store(target + i, lanes::fma(lanes::mul(lanes::load(source + i), scale), lanes::load(weight + i), lanes::load(target + i)));
}

// Rotates the two halves of the first 2 * half entries of a head by the position's angles [half].
inline void rotate(float* head, int64_t half, const float* cosine, const float* sine) {
  for (int64_t i = 0; i < half; i += 16) {
    const Lanes a = lanes::load(head + i), b = lanes::load(head + half + i);
    const Lanes c = lanes::load(cosine + i), s = lanes::load(sine + i);
    lanes::store(head + i, lanes::fnma(b, s, lanes::mul(a, c)));
    lanes::store(head + half + i, lanes::fma(a, s, lanes::mul(b, c)));
  }
}
