// Weights as the products read them (packing.h, stored.h), and the memory they lie in.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "int8_products.h"
#include "memory.h"
#include "packing.h"
#include "threads.h"

using stored::Format;
using Floats = std::vector<float>;  // of a norm or a bias; empty where there is none

// Writes rows [row, row + 16) of x [N, K] as a block [K/2][16][2]; rows past N stay as they are.
inline void pack_block(const bf16* x, int64_t N, int64_t K, int64_t row, bf16* block) {
  for (int64_t n = 0; n < std::min<int64_t>(kBlock, N - row); n++) {
    const bf16* from = x + (row + n) * K;
    for (int64_t k = 0; k < K; k += 2) std::memcpy(block + k * kBlock + n * 2, from + k, std::min<int64_t>(2, K - k) * sizeof(bf16));
  }
}

// [N, K] -> zeroed [N/16][K/2][16][2], with N padded to 32 and K to 32: for forwards that are not ours.
inline void pack(const bf16* weight, int64_t N, int64_t K, bf16* packed) {
  const int64_t depth = (K + 31) / 32 * 32;
  for (int64_t row = 0; row < N; row += kBlock) pack_block(weight, N, K, row, packed + row * depth);
}

// A matrix as it comes from a file: rows of `width` values in bf16, or of `width` bytes in another format.
struct Part {
  const void* data;
  int64_t rows, width, number;

  Format format() const { return static_cast<Format>(number); }
  int64_t depth() const { return format() == Format::kBf16 ? width : width / stored::file_bytes(format()) * stored::kGroup; }
};

inline int64_t block_bytes(Format format, int64_t K) {
  if (format == Format::kBf16) return K * kBlock * sizeof(bf16);
  return stored::with_layout(format, [&](auto layout) { return decltype(layout)::block_bytes(K / stored::kGroup); });
}

// A packed matrix [N, K] of a decoder's linear.
struct Matrix {
  struct Task {  // two blocks of 16 columns, side by side
    uint8_t* data;
    Format format;
    int64_t bytes;
  };
  std::vector<Task> tasks;
  int64_t depth = 0;  // K
  std::shared_ptr<Mapping> memory;  // keeps what the tasks point to
  bool takes_groups = false, takes_supers = false;  // which rows in 8 bits its formats take

  void add(const Task& task) {
    tasks.push_back(task);
    takes_supers |= stored::is_nested(task.format);
    takes_groups |= task.format != Format::kBf16 && !stored::is_nested(task.format);
  }

  // The first `columns` columns, a multiple of 32.
  Matrix first(int64_t columns) const { return {{tasks.begin(), tasks.begin() + columns / kTask}, depth, memory, takes_groups, takes_supers}; }

  // Writes column n, a row of the unpacked matrix, to `to` [K].
  void unpack(int64_t n, bf16* to) const {
    const Task& task = tasks[n / kTask];
    const bf16* block = reinterpret_cast<const bf16*>(task.data + n % kTask / kBlock * (task.bytes / 2));
    static thread_local std::vector<bf16> expanded;
    if (task.format != Format::kBf16) {
      expanded.resize(kBlock * depth);
      stored::expand_block(task.format, reinterpret_cast<const uint8_t*>(block), depth / stored::kGroup, expanded.data());
      block = expanded.data();
    }
    for (int64_t k = 0; k < depth; k += 2) std::memcpy(to + k, block + k * kBlock + n % kBlock * 2, 2 * sizeof(bf16));
  }
};

// All packed weights of a model side by side, in few mappings. Only what is used of them takes memory.
class Arena {
 public:
  // `parts` below one another; or two of them, interleaved block by block, so that a task holds the same columns of both.
  Matrix pack(Team& team, const std::vector<Part>& parts, bool interleaved = false) {
    Matrix matrix{{}, parts[0].depth(), {}};
    std::vector<std::pair<const Part*, int64_t>> blocks;  // part and first row
    for (const Part& part : parts)
      for (int64_t row = 0; row < (part.rows + kTask - 1) / kTask * kTask; row += kBlock) blocks.push_back({&part, row});
    if (interleaved) {
      const int64_t half = blocks.size() / 2;
      std::vector<std::pair<const Part*, int64_t>> pairs;
      for (int64_t b = 0; b < half; b++) pairs.insert(pairs.end(), {blocks[b], blocks[half + b]});
      blocks = pairs;
    }
    int64_t size = 0;
    for (size_t b = 0; b < blocks.size(); b += 2) {
      const Part &left = *blocks[b].first, &right = *blocks[b + 1].first;
      check(left.number == right.number && left.depth() == matrix.depth && right.depth() == matrix.depth && matrix.depth % 32 == 0,
            "a packed matrix has one depth, a multiple of 32, and one format for two interleaved parts");
      const int64_t bytes = 2 * block_bytes(left.format(), matrix.depth);
      matrix.add({nullptr, left.format(), bytes});
      size += bytes;
    }
    uint8_t* memory = take(size);
    matrix.memory = mappings_.back();
    for (auto& task : matrix.tasks) {
      task.data = memory;
      memory += task.bytes;
    }
    team.run([&] {
      const auto [first, end] = team.part(blocks.size());
      for (int64_t b = first; b < end; b++) {
        const Matrix::Task& task = matrix.tasks[b / 2];
        fill(*blocks[b].first, blocks[b].second, matrix.depth, task.data + b % 2 * (task.bytes / 2));
      }
    });
    return matrix;
  }

  // Some columns of another matrix, as they are packed there.
  Matrix gather(Team& team, const Matrix& from, const int64_t* columns, int64_t count) {
    const Matrix::Task& first = from.tasks[0];
    const int64_t tasks = (count + kTask - 1) / kTask, G = from.depth / stored::kGroup, half = first.bytes / 2;
    Matrix matrix{{}, from.depth, {}};
    uint8_t* memory = take(tasks * first.bytes);
    matrix.memory = mappings_.back();
    for (int64_t i = 0; i < tasks; i++) matrix.add({memory + i * first.bytes, first.format, first.bytes});
    team.run([&] {  // by tasks: no two threads write into one
      const auto [begin, end] = team.part(tasks);
      for (int64_t n = begin * kTask; n < std::min(end * kTask, count); n++) {
        const int64_t column = columns[n];
        const uint8_t* block = from.tasks[column / kTask].data + column % kTask / kBlock * half;
        uint8_t* to = memory + n / kTask * first.bytes + n % kTask / kBlock * half;
        if (first.format == Format::kBf16)
          for (int64_t k = 0; k < from.depth / 2; k++) std::memcpy(to + (k * kBlock + n % kBlock) * 4, block + (k * kBlock + column % kBlock) * 4, 4);
        else
          stored::with_layout(first.format, [&](auto layout) {
            stored::copy_column<decltype(layout)>(block, column % kBlock, to, n % kBlock, G);
          });
      }
    });
    return matrix;
  }

  int64_t bytes() const { return used_; }

 private:
  static constexpr int64_t kMapping = 1 << 30;

  uint8_t* take(int64_t bytes) {
    if (mappings_.empty() || taken_ + bytes > mappings_.back()->size()) {
      mappings_.push_back(std::make_shared<Mapping>(std::max(bytes, kMapping)));
      taken_ = 0;
    }
    taken_ += bytes;
    used_ += bytes;
    return mappings_.back()->data() + taken_ - bytes;
  }

  static void fill(const Part& part, int64_t row, int64_t depth, uint8_t* block) {
    if (part.format() == Format::kBf16) return pack_block(static_cast<const bf16*>(part.data), part.rows, depth, row, reinterpret_cast<bf16*>(block));
    const uint8_t* bytes = static_cast<const uint8_t*>(part.data) + row * part.width;
    const int64_t G = depth / stored::kGroup, rows = std::min<int64_t>(kBlock, part.rows - row);
    stored::with_layout(part.format(), [&](auto layout) {
      constexpr int64_t kNear = 8;  // groups of all columns are written before the next ones: they share cache lines
      for (int64_t first = 0; first < G; first += kNear)
        for (int64_t n = 0; n < rows; n++)
          for (int64_t g = first; g < std::min(first + kNear, G); g++)
            stored::write_group<decltype(layout)>(stored::read_group(part.format(), bytes + n * part.width, g), g, G, n, block);
    });
  }

  std::vector<std::shared_ptr<Mapping>> mappings_;
  int64_t taken_ = 0, used_ = 0;  // bytes: of the last mapping, of all
};
