// Products of rows in 8 bits with stored weights (stored.h). A row is brought to 8 bits in groups of 32 with a scale each; the sum over
// a group is an exact integer, and float32 adds the groups along K, always in the same order: a row has the same bits on every
// instruction set, for any number of other rows.
//
// Legend: M rows, R rows of one sweep, G groups of 32 along K.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "stored.h"

namespace stored {

struct RowGroup {
  int8_t values[kGroup];
  float scale, sum;           // sum: scale * that of the values, for formats with a minimum
  int32_t offset, halves[2];  // -8 * the sum of the values, of all and of each half: makes signed weights of unsigned ones
};

#if defined(PROLEPSIS_AMX)
constexpr int kSweepRows = 16;
#elif defined(__AVX512BF16__)
constexpr int kSweepRows = 6;  // with two blocks: 12 sums of integers and 12 of float32
#else
constexpr int kSweepRows = 4;
#endif

// M rows stand sweep by sweep, each as [G][rows of the sweep], so that a sweep reads one stream.
struct Sweeps {
  int64_t M, G;

  int64_t count() const { return (M + kSweepRows - 1) / kSweepRows; }
  int64_t first(int64_t sweep) const { return M * sweep / count(); }
  // The place of group 0 of row t, and how far apart its groups are.
  std::pair<int64_t, int64_t> place(int64_t t) const {
    const int64_t sweep = ((t + 1) * count() - 1) / M, from = first(sweep);
    return {from * G + t - from, first(sweep + 1) - from};
  }
};

// One row x [K] to 8 bits, in groups that are `stride` apart; K a multiple of 32.
inline void quantise(const bf16* x, int64_t K, int64_t stride, RowGroup* to) {
  for (int64_t k = 0; k < K; k += kGroup, to += stride) {
    const Lanes a = lanes::load(x + k), b = lanes::load(x + k + 16);
    const Lanes zero = lanes::zero();
    const float highest = lanes::highest(lanes::max(lanes::max(a, lanes::sub(zero, a)), lanes::max(b, lanes::sub(zero, b))));
    const Lanes factor = lanes::all(highest > 0 ? 127 / highest : 0);
    const Lanes whole_a = lanes::round(lanes::mul(a, factor)), whole_b = lanes::round(lanes::mul(b, factor));
    lanes::store_int8(to->values, whole_a);
    lanes::store_int8(to->values + 16, whole_b);
    const int32_t first = lanes::sum(whole_a), second = lanes::sum(whole_b);
    to->scale = highest / 127;
    to->sum = to->scale * (first + second);
    to->offset = -8 * (first + second);
    to->halves[0] = -8 * first;
    to->halves[1] = -8 * second;
  }
}

// c[r][0:32] = x, that many rows, times two blocks of weights of G groups.
using Product = void (*)(const RowGroup* x, int rows, const uint8_t* blocks, int64_t G, float* c);
Product product_of(Format format, int rows);  // rows: 1 to kSweepRows

// Calls epilogue(first_row, rows, c) with c[rows][32] for every sweep of `x` times two blocks of weights.
template <class Epilogue>
void task_product(Format format, const RowGroup* x, const Sweeps& sweeps, const uint8_t* blocks, float* c, const Epilogue& epilogue) {
  for (int64_t sweep = 0; sweep < sweeps.count(); sweep++) {
    const int64_t first = sweeps.first(sweep), rows = sweeps.first(sweep + 1) - first;
    product_of(format, rows)(x + first * sweeps.G, rows, blocks, sweeps.G, c);
    epilogue(first, rows, c);
  }
}

}  // namespace stored
