// Levels of a draft head (engine/models/heads/levels.py): their weights, and what follows a drafted token among a shortlist.
#pragma once
#include <vector>

#include "products.h"
#include "threads.h"
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

// For each of `drafted` (row, draft token): draft ids [m, count] int32 and log-probabilities [m, count] over `shortlist` [R, k] int32
// at that row, likeliest first; k a multiple of 16. `ahead` is [R, hidden], `entered` [R, width]. The team shares each state, then each
// shortlist.
inline std::pair<Tensor, Tensor> follow(Team& team, const Levels& levels, const Tensor& norm, float eps, const Tensor& ahead,
                                        const Tensor& entered, const Tensor& shortlist,
                                        const std::vector<std::pair<int64_t, int64_t>>& drafted, int64_t count) {
  const int64_t hidden = ahead.size(1), width = levels.width, size = shortlist.size(1), m = drafted.size();
  TORCH_CHECK(shortlist.is_contiguous() && shortlist.scalar_type() == at::kInt && size % 16 == 0 && 0 < count && count <= size,
              "a shortlist is int32 of a multiple of 16; given ", shortlist.sizes(), " for ", count, " candidates");
  for (const auto& [place, token] : drafted)
    TORCH_CHECK(0 <= place && place < ahead.size(0) && 0 <= token && token < levels.head.size(0), "no such row or draft token");
  const auto list_of = [&](int64_t j) { return shortlist.data_ptr<int>() + drafted[j].first * size; };
  const auto head_of = [&](int id) { return bits(levels.head) + id * hidden; };
  std::vector<float> states(m * hidden), logits(m * size);
  team.run([&] {
    const auto [first_state, end_state] = team.part(hidden);
    const auto [first_listed, end_listed] = team.part(size);
    std::vector<float> inner(width), state(hidden);
    for (int64_t j = 0; j < m; j++) {
      const auto [place, token] = drafted[j];
      for (int64_t i = first_listed; i < end_listed; i++) fetch(head_of(list_of(j)[i]), hidden * sizeof(bf16));
      const float *p = ahead.data_ptr<float>() + place * hidden, *a = entered.data_ptr<float>() + place * width;
      const bf16* met = bits(levels.tokens) + token * width;
      for (int64_t i = 0; i < width; i += 16) lanes::store(inner.data() + i, silu(lanes::add(lanes::load(a + i), lanes::load(met + i))));
      for (int64_t i = first_state; i < end_state; i++)
        states[j * hidden + i] = p[i] + dot(bits(levels.out) + i * width, inner.data(), width);
    }
    team.barrier();
    for (int64_t j = 0; j < m; j++) {
      std::copy_n(states.data() + j * hidden, hidden, state.data());
      rms_norm(state.data(), norm.data_ptr<float>(), eps, hidden);
      for (int64_t i = first_listed; i < end_listed; i++) logits[j * size + i] = dot(head_of(list_of(j)[i]), state.data(), hidden);
    }
  });
  Tensor ids = at::empty({m, count}, at::kInt), logs = at::empty({m, count}, at::kFloat);
  std::vector<std::pair<float, int>> best(count);
  for (int64_t j = 0; j < m; j++) {
    const float* values = logits.data() + j * size;
    std::fill(best.begin(), best.end(), std::pair{-INFINITY, 0});
    for (int64_t i = 0; i < size; i++)
      if (values[i] > best.back().first) insert(best, values[i], list_of(j)[i]);
    write_best(best, log_sum_exp(values, size, best[0].first), ids.data_ptr<int>() + j * count, logs.data_ptr<float>() + j * count);
  }
  return {ids, logs};
}
