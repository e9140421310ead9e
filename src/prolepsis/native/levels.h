// Levels of a draft head (models/heads/levels.py): their weights, and what follows a drafted token among a shortlist.
#pragma once
#include <vector>

#include "top_k.h"
#include "weights.h"

struct Levels {
  int64_t count, width;
  Matrix enter, state;        // [count * width, hidden], [width, hidden]
  std::vector<Matrix> leave;  // one for each level: [hidden, width]
  Tensor out, head, tokens;   // bf16 row by row: [hidden, width], the output head, and `token` times each draft token's embedding
  Tensor target_ids;          // [draft vocabulary] int64: the target's id of each draft token
};

// The sum over a[i] * b[i]; size a multiple of 32.
inline float dot(const bf16* a, const float* b, int64_t size) {
  Lanes even = lanes::zero(), odd = lanes::zero();
  for (int64_t i = 0; i < size; i += 32) {
    even = lanes::fma(lanes::load(a + i), lanes::load(b + i), even);
    odd = lanes::fma(lanes::load(a + i + 16), lanes::load(b + i + 16), odd);
  }
  return lanes::sum(lanes::add(even, odd));
}

// Of row `place` of `ahead` [R, hidden] and `entered` [R, width], after the draft token `token`: normed s in `state`.
inline void condition(const Levels& levels, const float* norm, float eps, const Tensor& ahead, const Tensor& entered, int64_t place,
                 int64_t token, float* inner, float* state) {
  const int64_t width = levels.width, hidden = ahead.size(1);
  const float *p = ahead.data_ptr<float>() + place * hidden, *a = entered.data_ptr<float>() + place * width;
  const bf16 *drafted = bits(levels.tokens) + token * width, *out = bits(levels.out);
  for (int64_t i = 0; i < width; i += 16) lanes::store(inner + i, silu(lanes::add(lanes::load(a + i), lanes::load(drafted + i))));
  for (int64_t i = 0; i < hidden; i++) state[i] = p[i] + dot(out + i * width, inner, width);
  const Lanes scale = lanes::all(inverse_rms(state, eps, hidden));
  for (int64_t i = 0; i < hidden; i += 16)
    lanes::store(state + i, lanes::mul(lanes::mul(lanes::load(state + i), scale), lanes::load(norm + i)));
}

// For each of `drafted` (row, draft token): draft ids [m, count] int32 and log-probabilities [m, count] over `shortlist` [R, k] int32
// at that row, likeliest first; k a multiple of 16.
inline std::pair<Tensor, Tensor> follow(const Levels& levels, const Tensor& norm, float eps, const Tensor& ahead, const Tensor& entered,
                                        const Tensor& shortlist, const std::vector<std::pair<int64_t, int64_t>>& drafted, int64_t count) {
  const int64_t hidden = ahead.size(1), size = shortlist.size(1), m = drafted.size();
  TORCH_CHECK(shortlist.is_contiguous() && shortlist.scalar_type() == at::kInt && size % 16 == 0 && 0 < count && count <= size,
              "a shortlist is int32 of a multiple of 16; given ", shortlist.sizes(), " for ", count, " candidates");
  Tensor ids = at::empty({m, count}, at::kInt), logs = at::empty({m, count}, at::kFloat);
  std::vector<float> inner(levels.width), state(hidden), logits(size);
  std::vector<std::pair<float, int>> best(count);
  for (int64_t j = 0; j < m; j++) {
    const auto [place, token] = drafted[j];
    TORCH_CHECK(0 <= place && place < ahead.size(0) && 0 <= token && token < levels.head.size(0), "no such row or draft token");
    condition(levels, norm.data_ptr<float>(), eps, ahead, entered, place, token, inner.data(), state.data());
    const int* list = shortlist.data_ptr<int>() + place * size;
    std::fill(best.begin(), best.end(), std::pair{-INFINITY, 0});
    for (int64_t i = 0; i < size; i++) {
      logits[i] = dot(bits(levels.head) + list[i] * hidden, state.data(), hidden);
      if (logits[i] > best.back().first) insert(best, logits[i], list[i]);
    }
    const float total = log_sum_exp(logits.data(), size, best[0].first);
    for (int64_t i = 0; i < count; i++) {
      ids.data_ptr<int>()[j * count + i] = best[i].second;
      logs.data_ptr<float>()[j * count + i] = best[i].first - total;
    }
  }
  return {ids, logs};
}
