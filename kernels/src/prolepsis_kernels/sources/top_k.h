// Top-k of rows of logits with log-probabilities: the candidates of a draft.
#pragma once
#include <cmath>
#include <utility>
#include <vector>

#include "face.h"
#include "threads.h"
#include "vector_math.h"

// Inserts (value, id) into `best`, sorted by falling value; among equals the lower id stays in front, as it came first.
inline void insert(std::vector<std::pair<float, int>>& best, float value, int id) {
  size_t place = best.size() - 1;
  for (; place > 0 && best[place - 1].first < value; place--) best[place] = best[place - 1];
  best[place] = {value, id};
}

// The log of the sum of exponentials of `size` values, a multiple of 16, of which `highest` is the largest.
inline float log_sum_exp(const float* values, int64_t size, float highest) {
  Lanes sum = lanes::zero();
  const Lanes top = lanes::all(highest);
  for (int64_t i = 0; i < size; i += 16)
    sum = lanes::add(sum, exp_of(lanes::max(lanes::sub(lanes::load(values + i), top), lanes::all(-87.0f))));
  return highest + std::log(lanes::sum(sum));
}

// Writes ids and log-probabilities of `best`; `total` is the log of the sum over all.
inline void write_best(const std::vector<std::pair<float, int>>& best, float total, int* ids, float* logs) {
  for (size_t i = 0; i < best.size(); i++) {
    ids[i] = best[i].second;
    logs[i] = best[i].first - total;
  }
}

// logits [L, V] float32, V = `size` a multiple of 16 -> ids [L, count] and log-probabilities [L, count], likeliest first. The team shares
// the rows.
inline void top_k(Team& team, const float* logits, int64_t rows, int64_t size, int64_t count, int* ids, float* logs) {
  check(size % 16 == 0 && 0 < count && count <= size, "top_k takes rows of a multiple of 16, and as many of them at most; given rows of ",
        size, ", and ", count);
  team.run([&] {
    const auto [first, end] = team.part(rows);
    std::vector<std::pair<float, int>> best(count);
    for (int64_t row = first; row < end; row++) {
      const float* values = logits + row * size;
      std::fill(best.begin(), best.end(), std::pair{-INFINITY, 0});
      for (int64_t i = 0; i < size; i += 16) {
        if (lanes::highest(lanes::load(values + i)) <= best.back().first) continue;
        for (int64_t j = i; j < i + 16; j++)
          if (values[j] > best.back().first) insert(best, values[j], j);
      }
      write_best(best, log_sum_exp(values, size, best[0].first), ids + row * count, logs + row * count);
    }
  });
}
