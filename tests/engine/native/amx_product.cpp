// Compares amx::product on emulated tiles with a plain product for every row count; prints the first difference and exits 1.
#include "products.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

static bf16 narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits >> 16;
}

int main() {
  constexpr int K = 96, N = 64, M = 70;
  std::vector<bf16> x(M * K), plain(N * K), packed(N * K);
  for (auto& v : x) v = narrow(std::rand() % 1000 / 500.0f - 1);
  for (auto& v : plain) v = narrow(std::rand() % 1000 / 500.0f - 1);
  for (int n = 0; n < N; n++)
    for (int k = 0; k < K; k++) packed[((n / 16) * K / 2 + k / 2) * 32 + (n % 16) * 2 + k % 2] = plain[n * K + k];
  alignas(64) float c[32 * kTask];
  for (int rows = 1; rows <= M; rows++) {
    int seen = 0;
    for (int task = 0; task < N / kTask; task++)
      task_product(x.data(), K, rows, packed.data() + task * kTask * K, K, c, [&](int64_t first, int count, const float* sums) {
        for (int r = 0; r < count; r++)
          for (int n = 0; n < kTask; n++, seen++) {
            float expected = 0;
            for (int k = 0; k < K; k++)
              expected += emulation::widen(x[(first + r) * K + k]) * emulation::widen(plain[(task * kTask + n) * K + k]);
            if (std::fabs(sums[r * kTask + n] - expected) < 1e-3) continue;
            std::printf("rows %d, row %d, column %d: %g, expected %g\n", rows, int(first + r), task * kTask + n, sums[r * kTask + n], expected);
            std::exit(1);
          }
      });
    if (seen != rows * N) {
      std::printf("rows %d: %d results, expected %d\n", rows, seen, rows * N);
      std::exit(1);
    }
  }
  std::puts("ok");
}
