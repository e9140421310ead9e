// Maximum and argmax of a row: plain loops over blocks, which the compiler makes vectors of.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

namespace scan {

constexpr int64_t kBlock = 64;

template <class T>
inline T max_of(const T* values, int64_t size) {
  T lanes[kBlock];
  std::fill(lanes, lanes + kBlock, -std::numeric_limits<T>::infinity());
  int64_t i = 0;
  for (; i + kBlock <= size; i += kBlock)
    for (int64_t j = 0; j < kBlock; j++) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
  T max = *std::max_element(lanes, lanes + kBlock);
  for (; i < size; i++) max = values[i] > max ? values[i] : max;
  return max;
}

template <class T>
inline int64_t first_of(const T* values, int64_t size, T wanted) {
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t length = std::min(kBlock, size - start);
    int hits = 0;
    for (int64_t j = 0; j < length; j++) hits |= values[start + j] == wanted;
    if (hits) return std::find(values + start, values + start + length, wanted) - values;
  }
  return 0;
}

}  // namespace scan
