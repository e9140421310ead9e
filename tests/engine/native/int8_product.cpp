// Compares stored::task_product and stored::expand, for every format, with sums and values written out; prints the first difference.
#include "int8_products.cpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using namespace stored;

constexpr int K = 512, G = K / kGroup, M = 50;

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
  int values[kGroup];  // without the offset

  template <class L>
  Plain(L, const Group& group) {
    for (int i = 0; i < 2; i++) {
      const int own = L::kMinimum ? group.scales[0] : static_cast<int8_t>(group.scales[i % L::kScales]);
      scales[i] = half(group.scale) * (L::kNested ? own : 1);
    }
    if (L::kMinimum) minimum = L::kNested ? 0 - half(group.minimum) * group.minimum_scale : half(group.minimum);
    for (int k = 0; k < kGroup; k++) values[k] = group.codes[k] - L::kOffset;
  }
};

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
      float total = 0;
      for (int g = 0; g < G; g++) {
        const Plain& p = plain[n * G + g];
        float highest = 0;
        for (int k = 0; k < kGroup; k++) highest = std::max(highest, std::fabs(wide(x[m * K + g * kGroup + k])));
        int sums[2] = {}, all = 0;
        for (int k = 0; k < kGroup; k++) {
          const int value = highest > 0 ? int(std::nearbyint(wide(x[m * K + g * kGroup + k]) * (127 / highest))) : 0;
          sums[k * L::kScales / kGroup] += value * p.values[k];
          all += value;
        }
        const float scale = highest / 127;
        for (int i = 0; i < L::kScales; i++) total = std::fma(float(sums[i]) * scale, p.scales[i], total);
        if (L::kMinimum) total = std::fma(p.minimum, scale * all, total);
      }
      expected[m * kTask + n] = total;
    }
  alignas(64) float c[32 * kTask];
  for (int rows = 1; rows <= M; rows++) {
    const Sweeps sweeps{rows, G};
    std::vector<RowGroup> quantised(G * rows);
    for (int m = 0; m < rows; m++) {
      const auto [at, stride] = sweeps.place(m);
      quantise(x.data() + m * K, K, stride, quantised.data() + at);
    }
    int seen = 0;
    task_product(format, quantised.data(), sweeps, packed.data(), packed.size(), c, [&](int64_t first, int count, const float* sums) {
      for (int r = 0; r < count; r++)
        for (int n = 0; n < kTask; n++, seen++) {
          const float right = expected[(first + r) * kTask + n];
          if (sums[r * kTask + n] != right) complain("a product", int(format), int(first + r), n, sums[r * kTask + n], right);
        }
    });
    if (seen != rows * kTask) complain("the number of results", int(format), rows, 0, seen, rows * kTask);
  }
}

}  // namespace

int main() {
  std::vector<bf16> x(M * K);
  for (auto& v : x) v = to_bf16((std::rand() % 1000 / 500.0f - 1) * (std::rand() % 20 == 0 ? 30 : 1));
  for (int k = 0; k < kGroup; k++) x[k] = 0, x[k + kGroup] = to_bf16(1), x[k + 2 * kGroup] = to_bf16(-1);  // zeros; the largest sums
  for (const Format format : {Format::kQ4_0, Format::kQ4_1, Format::kQ5_0, Format::kQ5_1, Format::kQ8_0, Format::kQ4_K, Format::kQ5_K, Format::kQ6_K})
    with_layout(format, [&](auto layout) { check<decltype(layout)>(format, x); });
  std::puts("ok");
}
