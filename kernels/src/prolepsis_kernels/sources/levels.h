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
  std::vector<bf16> out, head, tokens;  // row by row: [hidden, width], the output head, and `token` times each draft token's embedding
  std::vector<int64_t> target_ids;      // of each draft token
};

struct Drafted {
  int64_t place, token;  // row of the states ahead, and draft token there
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
inline void follow(Team& team, const Levels& levels, const Floats& norm, float eps, const float* ahead, const float* entered, int64_t rows,
                   const int* shortlist, int64_t size, const std::vector<Drafted>& drafted, int64_t count, int* ids, float* logs) {
  const int64_t hidden = norm.size(), width = levels.width, m = drafted.size();
  check(size % 16 == 0 && 0 < count && count <= size, "a shortlist is a multiple of 16; given ", size, " for ", count, " candidates");
  for (const auto& [place, token] : drafted)
    check(0 <= place && place < rows && 0 <= token && token < static_cast<int64_t>(levels.target_ids.size()), "no such row or draft token");
  const auto list_of = [&](int64_t j) { return shortlist + drafted[j].place * size; };
  const auto head_of = [&](int id) { return levels.head.data() + id * hidden; };
  std::vector<float> states(m * hidden), logits(m * size);
  team.run([&] {
    const auto [first_state, end_state] = team.part(hidden);
    const auto [first_listed, end_listed] = team.part(size);
    std::vector<float> inner(width), state(hidden);
    for (int64_t j = 0; j < m; j++) {
      const auto [place, token] = drafted[j];
      for (int64_t i = first_listed; i < end_listed; i++) fetch(head_of(list_of(j)[i]), hidden * sizeof(bf16));
      const float *p = ahead + place * hidden, *a = entered + place * width;
      const bf16* met = levels.tokens.data() + token * width;
      for (int64_t i = 0; i < width; i += 16) lanes::store(inner.data() + i, silu(lanes::add(lanes::load(a + i), lanes::load(met + i))));
      for (int64_t i = first_state; i < end_state; i++)
        states[j * hidden + i] = p[i] + dot(levels.out.data() + i * width, inner.data(), width);
    }
    team.barrier();
    for (int64_t j = 0; j < m; j++) {
      std::copy_n(states.data() + j * hidden, hidden, state.data());
      rms_norm(state.data(), norm.data(), eps, hidden);
      for (int64_t i = first_listed; i < end_listed; i++) logits[j * size + i] = dot(head_of(list_of(j)[i]), state.data(), hidden);
    }
  });
  std::vector<std::pair<float, int>> best(count);
  for (int64_t j = 0; j < m; j++) {
    const float* values = logits.data() + j * size;
    std::fill(best.begin(), best.end(), std::pair{-INFINITY, 0});
    for (int64_t i = 0; i < size; i++)
      if (values[i] > best.back().first) insert(best, values[i], list_of(j)[i]);
    write_best(best, log_sum_exp(values, size, best[0].first), ids + j * count, logs + j * count);
  }
}
