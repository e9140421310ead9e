// Compares eight::task_product bit by bit with sums written out, for every row count; prints the first difference and exits 1.
#include "eight_bits.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main() {
  constexpr int K = 160, G = 3, N = 64, M = 40;  // the last group of K is half full
  std::vector<bf16> x(M * K);
  for (auto& v : x) v = to_bf16((std::rand() % 1000 / 500.0f - 1) * (std::rand() % 20 == 0 ? 30 : 1));
  for (int k = 0; k < 64; k++) x[k] = 0;  // a group of zeros
  std::vector<eight::WeightGroup> weights(N / kBlock * G);
  std::vector<int> plain(N * G * 64);
  for (int n = 0; n < N; n++)
    for (int k = 0; k < G * 64; k++) {
      const int value = k < K ? std::rand() % 255 - 127 : 0;
      auto& group = weights[n / kBlock * G + k / 64];
      group.weights[k % 64 / 4][n % kBlock][k % 4] = value + 128;
      group.scales[n % kBlock] = (1 + n % 7) * 0.01f + k / 64;
      plain[n * G * 64 + k] = value;
    }
  std::vector<float> expected(M * N);
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      float total = 0;
      for (int g = 0; g < G; g++) {
        float highest = 0, values[64] = {};
        for (int k = 0; k < 64 && g * 64 + k < K; k++) {
          const uint32_t wide = uint32_t(x[m * K + g * 64 + k]) << 16;
          std::memcpy(values + k, &wide, 4);
          highest = std::max(highest, std::fabs(values[k]));
        }
        int sum = 0;
        for (int k = 0; k < 64; k++)
          sum += highest > 0 ? int(std::nearbyint(values[k] * (127 / highest))) * plain[n * G * 64 + g * 64 + k] : 0;
        total = std::fma(float(sum), highest / 127 * weights[n / kBlock * G + g].scales[n % kBlock], total);
      }
      expected[m * N + n] = total;
    }
  alignas(64) float c[32 * kTask];
  for (int rows = 1; rows <= M; rows++) {
    std::vector<eight::RowGroup> quantised(G * rows);
    for (int m = 0; m < rows; m++) eight::quantise(x.data() + m * K, K, rows, quantised.data() + m);
    int seen = 0;
    for (int task = 0; task < N / kTask; task++)
      eight::task_product(quantised.data(), rows, weights.data(), G, task, c, [&](int64_t first, int count, const float* sums) {
        for (int r = 0; r < count; r++)
          for (int n = 0; n < kTask; n++, seen++) {
            const float right = expected[(first + r) * N + task * kTask + n];
            if (sums[r * kTask + n] == right) continue;
            std::printf("rows %d, row %d, column %d: %.9g, expected %.9g\n", rows, int(first + r), task * kTask + n, sums[r * kTask + n], right);
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
