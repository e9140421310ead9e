// Products with the formats called K. A weight is d * scale * code - dmin * minimum, and scale and minimum are integers of 6 or 8 bits,
// so over the 256 weights that share d and dmin the sums of scale * code * value (I) and of minimum * value (J) are exact in int32. Float32
// adds the supers along K, in one order on every instruction set and for any number of rows:
//
//   total += (I * d - J * dmin) * scale of the row
//
// Q6_K has signed codes, stored with an offset of 32: sums of 16 begin at -32 times those of the values. Where the scale is in the products
// already, J sums scale * value, and I - 32 * J takes the place of I.
#pragma once
#include "dots.h"
#include "int8_products.h"
#include "products.h"

namespace stored {

// What joins the sums of a super with the rest, for 16 columns.
template <class L>
struct Ends {
  static constexpr int kPairs = L::kMinimum ? kSuperGroups / 2 : kSuperGroups;
  Bytes minima[kPairs];  // as pairs of int16: of two groups, or of the halves of one
  Lanes scale, minimum;  // d, dmin

  // J of a row.
  Bytes lower(const RowSuper& x) const {
    const auto* sums = reinterpret_cast<const int32_t*>(L::kMinimum ? x.sums : x.halves);
    Bytes total = lanes::zero_bytes();
#pragma GCC unroll 8
    for (int j = 0; j < kPairs; j++) total = lanes::add_pair_products(total, minima[j], lanes::all_int32(sums[j]));
    return total;
  }

  // total + (whole * d - J * dmin) * the row's scale.
  Lanes added(Lanes total, Bytes whole, const RowSuper& x) const {
    Lanes sum = lanes::mul(lanes::int32_as_float(whole), scale);
    if constexpr (L::kMinimum) sum = lanes::fnma(lanes::int32_as_float(lower(x)), minimum, sum);
    return lanes::fma(sum, lanes::all(x.scale), total);
  }
};

// Super s of a block, as it is stored.
template <class L>
struct StoredSuper {
  const uint8_t *codes, *header;

  StoredSuper(const uint8_t* block, int64_t s, int64_t G)
      : codes(block + s * kSuperGroups * L::kCodeBytes), header(block + G * L::kCodeBytes + s * L::kSuperBytes) {}

  const uint8_t* own(int g) const { return header + L::kHeader + g * L::kScaleBytes; }
  Bytes quad(int g, int k) const { return quad_of<L>(codes + g * L::kCodeBytes, k); }
  Bytes scale(int g, int i) const { return lanes::widen_bytes<!L::kMinimum>(own(g) + i * kBlock); }
  Bytes factor(int g, int i) const { return factor_of(scale(g, i)); }

  Ends<L> ends() const {
    Ends<L> found;
    for (int j = 0; j < found.kPairs; j++)
      found.minima[j] = L::kMinimum ? lanes::pairs(lanes::widen_bytes<false>(own(2 * j) + kBlock), lanes::widen_bytes<false>(own(2 * j + 1) + kBlock))
                                    : lanes::pairs(scale(j, 0), scale(j, L::kScales - 1));
    found.scale = lanes::load_half(header);
    found.minimum = L::kMinimum ? lanes::load_half(header + 2 * kBlock) : lanes::zero();
    return found;
  }
};

// What the first of several sweeps leaves to the others: all that is not a code worked out, and a byte for each code where bits lie apart.
template <class L>
struct SpreadSuper {
  static constexpr bool kSpreads = L::kBits > 4;
  uint8_t codes[kSuperGroups][kQuads][kSpreads ? 64 : 1];
  const uint8_t* stored;
  Bytes factors[kSuperGroups][L::kScales];
  Ends<L> rest;

  Bytes quad(int g, int k) const {
    if constexpr (kSpreads) return lanes::load_bytes(codes[g][k]);
    return quad_of<L>(stored + g * L::kCodeBytes, k);
  }
  Bytes factor(int g, int i) const { return factors[g][i]; }
  const Ends<L>& ends() const { return rest; }
};

// A super as the first sweep reads it.
template <class L>
struct SpreadingSuper {
  StoredSuper<L> from;
  SpreadSuper<L>* to;

  SpreadingSuper(const StoredSuper<L>& from, SpreadSuper<L>* to) : from(from), to(to) { to->stored = from.codes; }

  void spread_all(Stream& ahead) const {
    const SpreadingSuper own = *this;  // that no store can change
    for (int g = 0; g < kSuperGroups; g++) {
      ahead.fetch_some();
      if constexpr (SpreadSuper<L>::kSpreads)
#pragma GCC unroll 8
        for (int k = 0; k < kQuads; k++) own.quad(g, k);
      for (int i = 0; i < L::kScales; i++) own.factor(g, i);
    }
    own.ends();
  }
  Bytes quad(int g, int k) const {
    const Bytes found = from.quad(g, k);
    if constexpr (SpreadSuper<L>::kSpreads) lanes::store_bytes(to->codes[g][k], found);
    return found;
  }
  Bytes factor(int g, int i) const { return to->factors[g][i] = from.factor(g, i); }
  const Ends<L>& ends() const { return to->rest = from.ends(); }
};

// Where sums of codes begin for scale i of group g.
template <class L>
inline int32_t start_of(const RowSuper& x, int g, int i) { return L::kMinimum || !kScalesLate ? 0 : x.offsets[L::kScales * g + i]; }

constexpr int blocks_at_once(int rows) { return rows > kSweepRows ? 1 : kTogether; }

// whole[b][r] = I of x[r] and a super of each of B blocks.
template <class L, int R, int B, class Super>
inline void multiply_super(const RowSuper* x, const Super* const (&supers)[B], Stream& ahead, Bytes (&whole)[B][R]) {
  constexpr int kEach = kQuads / L::kScales;
  for (auto& block : whole)
    for (auto& sum : block) sum = lanes::zero_bytes();
  for (int g = 0; g < kSuperGroups; g++) {
    ahead.fetch_some();
#pragma GCC unroll 2
    for (int i = 0; i < L::kScales; i++) {
      Sums sums[B][R];
      Bytes factors[B];
      for (int b = 0; b < B; b++) {
        factors[b] = supers[b]->factor(g, i);
        for (int r = 0; r < R; r++) sums[b][r] = sums_from<L>(start_of<L>(x[r], g, i));
      }
#pragma GCC unroll 8
      for (int k = i * kEach; k < (i + 1) * kEach; k++) {
        Bytes quads[B];
        for (int b = 0; b < B; b++) quads[b] = supers[b]->quad(g, k);
        for (int r = 0; r < R; r++)
          for (int b = 0; b < B; b++)
            add_dot<L>(sums[b][r], quads[b], reinterpret_cast<const int32_t*>(x[r].values)[g * kQuads + k], k, factors[b]);
      }
      for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++) whole[b][r] = joined(whole[b][r], sums[b][r], factors[b]);
    }
  }
}

// Whether all sums of codes are within int16.
template <class L, int R>
inline bool are_narrow(const RowSuper* x) {
  int most = 0;
  for (int r = 0; r < R; r++) most = std::max<int>(most, L::kMinimum ? x[r].reach : x[r].half_reach);
  return most <= 32767 / (L::kMinimum ? (1 << L::kBits) - 1 : L::kOffset);
}

#if defined(__AVX512VNNI__)

// `multiply_super` for sums that are narrow: a pair of them takes its two scales in with one multiplication.
template <class L, int R, class Super>
inline void multiply_pairs(const RowSuper* x, const Super& super, Stream& ahead, Bytes (&whole)[R]) {
  constexpr int kEach = kQuads / L::kScales, kGroups = 2 / L::kScales;  // quads of a sum, groups of a pair
  for (auto& sum : whole) sum = lanes::zero_bytes();
  for (int g = 0; g < kSuperGroups; g += kGroups) {
    for (int i = 0; i < kGroups; i++) ahead.fetch_some();
    Sums sums[2][R];
    const Bytes factors = lanes::pairs(super.factor(g, 0), super.factor(g + kGroups - 1, L::kScales - 1));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      const int group = g + i % kGroups, part = i % L::kScales;
      for (int r = 0; r < R; r++) sums[i][r] = sums_from<L>(start_of<L>(x[r], group, part));
#pragma GCC unroll 8
      for (int k = part * kEach; k < (part + 1) * kEach; k++) {
        const Bytes quad = super.quad(group, k);
        for (int r = 0; r < R; r++) add_dot<L>(sums[i][r], quad, reinterpret_cast<const int32_t*>(x[r].values)[group * kQuads + k], k, factors);
      }
    }
    for (int r = 0; r < R; r++) whole[r] = lanes::add_pair_products(whole[r], lanes::pairs(sums[0][r], sums[1][r]), factors);
  }
}

#endif

// I of R rows of x and a super of each of B blocks, by the way that multiplies least.
template <class L, int R, int B, class Super>
inline void multiply(const RowSuper* x, const Super* const (&supers)[B], Stream& ahead, Bytes (&whole)[B][R]) {
#if defined(__AVX512VNNI__)
  if constexpr (B == 1)
    if (are_narrow<L, R>(x)) return multiply_pairs<L, R>(x, *supers[0], ahead, whole[0]);
#endif
  multiply_super<L, R, B>(x, supers, ahead, whole);
}

// c[r][0:32] += x[r] * a super of two blocks.
template <class L, int R, class Super>
void add_super(const RowSuper* x, const Super* supers, Stream& ahead, float* c) {
  constexpr int B = blocks_at_once(R);
  for (int first = 0; first < 2; first += B) {
    const Super* together[B];
    for (int b = 0; b < B; b++) together[b] = supers + first + b;
    Bytes whole[B][R];
    multiply<L, R, B>(x, together, ahead, whole);
    for (int b = 0; b < B; b++) {
      const Ends<L>& ends = together[b]->ends();
      for (int r = 0; r < R; r++) {
        float* to = c + r * kTask + (first + b) * kBlock;
        if constexpr (!L::kMinimum && !kScalesLate) whole[b][r] = lanes::sub_int32(whole[b][r], lanes::shift_int32<5>(ends.lower(x[r])));
        lanes::store(to, ends.added(lanes::load(to), whole[b][r], x[r]));
      }
    }
  }
}

template <class L, class Super>
using AddSuper = void (*)(const RowSuper*, const Super*, Stream&, float*);
template <class L, class Super, int... R>
constexpr auto supers_table(std::integer_sequence<int, R...>) {
  return std::array<AddSuper<L, Super>, sizeof...(R)>{add_super<L, R + 1, Super>...};
}
template <class L, class Super>
constexpr auto kAddSuper = supers_table<L, Super>(std::make_integer_sequence<int, kSuperRows>{});

// As `nested_product`, without tiles. AVX-512 spreads codes for three sweeps and more, as its units that multiply have no part in reading them.
template <class L>
void multiply_nested(const RowSuper* x, int64_t M, const uint8_t* blocks, int64_t G, float* c) {
  const int64_t second = L::block_bytes(G), count = sweeps_of(M, kSuperRows), supers = G / kSuperGroups;
  const bool spreads = kTogether == 1 ? count > 1 : SpreadSuper<L>::kSpreads && count > 2;
  constexpr bool kAtOnce = kTogether == 1;  // all is spread before a sweep, not by the first of them
  int64_t turns = kAtOnce && spreads ? 2 : 0;  // over all groups
  for (int64_t sweep = 0; sweep < count; sweep++) turns += 2 / blocks_at_once(M * (sweep + 1) / count - M * sweep / count);
  Stream ahead(blocks + 2 * second, 2 * second, supers * turns * kSuperGroups);
  const auto add_sweep = [&]<class Super>(int64_t sweep, const Super* both) {
    const int64_t first = M * sweep / count, end = M * (sweep + 1) / count;
    kAddSuper<L, Super>[end - first - 1](x + first, both, ahead, c + first * kTask);
  };
  for (int64_t s = 0; s < supers; s++, x += M) {
    const StoredSuper<L> stored[2] = {{blocks, s, G}, {blocks + second, s, G}};
    if (!spreads) {
      for (int64_t sweep = 0; sweep < count; sweep++) add_sweep(sweep, stored);
      continue;
    }
    static thread_local SpreadSuper<L> spread[2];
    const SpreadingSuper<L> spreading[2] = {{stored[0], spread}, {stored[1], spread + 1}};
    if constexpr (kAtOnce)
      for (const auto& super : spreading) super.spread_all(ahead);
    else
      add_sweep(0, spreading);
    for (int64_t sweep = !kAtOnce; sweep < count; sweep++) add_sweep(sweep, spread);
  }
}

}  // namespace stored
