// Compares stored::task_product and stored::expand, for every format, with sums and values written out; prints the first difference.
#include "int8_products.cpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace stored;

constexpr int K = 1280, G = K / kGroup, M = 70;

float wide(bf16 value) {
  const uint32_t bits = uint32_t(value) << 16;
  float found;
  std::memcpy(&found, &bits, 4);
  return found;
}

float half(uint16_t bits) {
  uint16_t all[kBlock] = {bits};
  float found[kBlock];
  lanes::store(found, lanes::load_half(reinterpret_cast<const uint8_t*>(all)));
  return found[0];
}

void complain(const char* what, int format, int row, int column, float found, float expected) {
  std::printf("%s of format %d, row %d, column %d: %.9g, expected %.9g\n", what, format, row, column, found, expected);
  std::exit(1);
}

struct Plain {  // of one group of one column
  float scales[2], minimum = 0;
  int own[2], own_minimum;  // of a nested format: as integers, by which `shared` are multiplied
  float shared, shared_minimum;
  int values[kGroup];  // without the offset

  template <class L>
  Plain(L, const Group& group) : own_minimum(group.minimum_scale), shared(half(group.scale)), shared_minimum(half(group.minimum)) {
    for (int i = 0; i < 2; i++) {
      own[i] = L::kMinimum ? group.scales[0] : static_cast<int8_t>(group.scales[i % L::kScales]);
      scales[i] = shared * (L::kNested ? own[i] : 1);
    }
    if (L::kMinimum) minimum = L::kNested ? 0 - shared_minimum * own_minimum : shared_minimum;
    for (int k = 0; k < kGroup; k++) values[k] = group.codes[k] - L::kOffset;
  }
};

// `count` values of a row in 8 bits; returns their scale.
float in_bytes(const bf16* x, int count, int* values) {
  float highest = 0;
  for (int k = 0; k < count; k++) highest = std::max(highest, std::fabs(wide(x[k])));
  for (int k = 0; k < count; k++) values[k] = highest > 0 ? int(std::nearbyint(wide(x[k]) * (127 / highest))) : 0;
  return highest / 127;
}

// A row times a column [G] in groups of 32: float32 adds group by group.
template <class L>
float by_groups(const bf16* x, const Plain* column) {
  float total = 0;
  for (int g = 0; g < G; g++) {
    int values[kGroup], sum = 0, all = 0;
    const float scale = in_bytes(x + g * kGroup, kGroup, values);
    for (int k = 0; k < kGroup; k++) sum += values[k] * column[g].values[k], all += values[k];
    total = std::fma(float(sum) * scale, column[g].scales[0], total);
    if (L::kMinimum) total = std::fma(column[g].minimum, scale * all, total);
  }
  return total;
}

// The same in supers of 256, whose own scales are integers: float32 adds super by super.
template <class L>
float by_supers(const bf16* x, const Plain* column) {
  constexpr int kSuper = kSuperGroups * kGroup;
  float total = 0;
  for (int s = 0; s < G / kSuperGroups; s++, column += kSuperGroups) {
    int values[kSuper], sum = 0, lower = 0;
    const float scale = in_bytes(x + s * kSuper, kSuper, values);
    for (int k = 0; k < kSuper; k++) {
      const Plain& p = column[k / kGroup];
      sum += values[k] * p.values[k % kGroup] * p.own[k % kGroup / 16];
      lower += values[k] * p.own_minimum;
    }
    float whole = float(sum) * column->shared;
    if (L::kMinimum) whole = std::fma(-float(lower), column->shared_minimum, whole);
    total = std::fma(whole, scale, total);
  }
  return total;
}

template <class L>
void check(Format format, const std::vector<bf16>& x) {
  std::vector<uint8_t> row(static_cast<size_t>(file_bytes(format) * G)), packed(2 * L::block_bytes(G));
  std::vector<Plain> plain;  // [32][G]
  for (int n = 0; n < kTask; n++) {
    for (auto& byte : row) byte = std::rand();
    for (int g = 0; g < G; g++) {
      Group group = read_group(format, row.data(), g);
      group.scale = 0x1000 + (group.scale & 0x13ff), group.minimum = 0x9000 ^ (group.minimum & 0x93ff);  // finite, of either sign
      if (L::kNested) group.scale = 0x1234, group.minimum = 0x1111;
      if (n < 2) std::fill_n(group.codes, kGroup, n == 0 ? (1 << L::kBits) - 1 : 0);
      write_group<L>(group, g, G, n % kBlock, packed.data() + n / kBlock * L::block_bytes(G));
      plain.push_back(Plain(L{}, group));
    }
  }
  std::vector<bf16> expanded(kTask * K);
  for (int b = 0; b < 2; b++) expand_block(format, packed.data() + b * L::block_bytes(G), G, expanded.data() + b * kBlock * K);
  for (int n = 0; n < kTask; n++)
    for (int k = 0; k < K; k++) {
      const Plain& p = plain[n * G + k / kGroup];
      const float exact = std::fma(float(p.values[k % kGroup]), p.scales[k % kGroup / 16], p.minimum);
      const float found = wide(expanded[n / kBlock * kBlock * K + k / 2 * 32 + n % kBlock * 2 + k % 2]), rounded = wide(to_bf16(exact));
      if (found != rounded) complain("a value", int(format), n, k, found, rounded);
    }
  std::vector<float> expected(M * kTask);
  for (int m = 0; m < M; m++)
    for (int n = 0; n < kTask; n++) {
      float (*const product)(const bf16*, const Plain*) = L::kNested ? by_supers<L> : by_groups<L>;
      expected[m * kTask + n] = product(x.data() + m * K, plain.data() + n * G);
    }
  alignas(64) float c[32 * kTask];
  for (int rows = 1; rows <= M; rows++) {
    int seen = 0;
    const auto compare = [&](int64_t first, int count, const float* sums) {
      for (int r = 0; r < count; r++)
        for (int n = 0; n < kTask; n++, seen++) {
          const float right = expected[(first + r) * kTask + n];
          if (sums[r * kTask + n] != right) complain("a product", int(format), int(first + r), n, sums[r * kTask + n], right);
        }
    };
    if constexpr (L::kNested) {
      std::vector<RowSuper> quantised(G / kSuperGroups * rows + kMostTileRows);
      for (int m = 0; m < rows; m++) quantise(x.data() + m * K, K, rows, quantised.data() + m);
      task_product(format, quantised.data(), rows, G, packed.data(), compare);
    } else {
      const Sweeps sweeps{rows, G};
      std::vector<RowGroup> quantised(G * rows);
      for (int m = 0; m < rows; m++) {
        const auto [at, stride] = sweeps.place(m);
        quantise(x.data() + m * K, K, stride, quantised.data() + at);
      }
      task_product(format, quantised.data(), sweeps, packed.data(), packed.size(), c, compare);
    }
    if (seen != rows * kTask) complain("the number of results", int(format), rows, 0, seen, rows * kTask);
  }
}

}  // namespace

int main() {
  std::vector<bf16> x(M * K);
  for (auto& v : x) v = to_bf16((std::rand() % 1000 / 500.0f - 1) * (std::rand() % 20 == 0 ? 30 : 1));
  for (int k = 0; k < kGroup; k++) x[k] = 0, x[k + kGroup] = to_bf16(1), x[k + 2 * kGroup] = to_bf16(-1);  // zeros; the largest sums
  for (int m = 8; m < 24; m++) {  // rows with sums just within int16 by the codes of Q4_K, Q5_K and Q6_K, and just not
    std::fill_n(x.begin() + m * K, kSuperGroups * kGroup, 0);
    for (int k = 0, left = (m < 12 ? 2184 : m < 16 ? 1057 : 1023) + m % 2; k < kGroup; k++) {
      const int value = std::min(left, m >= 16 && k >= kGroup / 2 ? 0 : 127);
      x[m * K + 3 * kGroup + k] = to_bf16((m & 2 ? -1 : 1) * value / 127.0f), left -= value;
    }
  }
  for (const Format format : {Format::kQ4_0, Format::kQ4_1, Format::kQ5_0, Format::kQ5_1, Format::kQ8_0, Format::kQ4_K, Format::kQ5_K, Format::kQ6_K})
    with_layout(format, [&](auto layout) { check<decltype(layout)>(format, x); });
  std::puts("ok");
}
