// Weights as the products read them (packing.h, stored.h), and the memory they lie in.
#pragma once
#include <torch/extension.h>

#include <ATen/Parallel.h>

#include <array>
#include <optional>
#include <vector>

#include "int8_products.h"
#include "memory.h"
#include "packing.h"

using at::Tensor;
using stored::Format;

inline bf16* bits(const Tensor& t) { return reinterpret_cast<bf16*>(t.data_ptr()); }
inline const float* floats(const std::optional<Tensor>& t) { return t ? t->data_ptr<float>() : nullptr; }

// Writes rows [row, row + 16) of x [N, K] bf16 as a block [K/2][16][2]; rows past N stay as they are.
inline void pack_block(const Tensor& x, int64_t row, bf16* block) {
  const int64_t K = x.size(1), rows = std::min<int64_t>(kBlock, x.size(0) - row);
  for (int64_t n = 0; n < rows; n++) {
    const bf16* from = bits(x) + (row + n) * K;
    for (int64_t k = 0; k < K; k += 2) std::memcpy(block + k * kBlock + n * 2, from + k, std::min<int64_t>(2, K - k) * sizeof(bf16));
  }
}

// [N, K] bf16 -> [N/16][K/2][16][2], with N padded to 32 and K to 32 by zeros: for forwards that are not ours.
inline Tensor pack(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == at::kBFloat16, "pack takes a bf16 matrix, got ", weight.sizes(), " ",
              weight.scalar_type());
  const Tensor rows = weight.contiguous();
  const int64_t blocks = (weight.size(0) + kTask - 1) / kTask * 2, depth = (weight.size(1) + 31) / 32 * 32;
  Tensor packed = at::zeros({blocks, depth / 2, kBlock, 2}, weight.options());
  for (int64_t b = 0; b * kBlock < weight.size(0); b++) pack_block(rows, b * kBlock, bits(packed) + b * kBlock * depth);
  return packed;
}

// A matrix [N, K] as it comes from a file: bf16, or the bytes of its rows; and the number of its format.
using Part = std::pair<Tensor, int>;

inline Format format_of(const Part& part) { return static_cast<Format>(part.second); }
inline int64_t depth_of(const Part& part) {
  return format_of(part) == Format::kBf16 ? part.first.size(1) : part.first.size(1) / stored::file_bytes(format_of(part)) * stored::kGroup;
}
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
  Tensor memory;      // keeps what the tasks point to
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
  Matrix pack(const std::vector<Part>& parts, bool interleaved = false) {
    Matrix matrix{{}, depth_of(parts[0]), {}};
    std::vector<std::pair<const Part*, int64_t>> blocks;  // part and first row
    for (const Part& part : parts)
      for (int64_t row = 0; row < (part.first.size(0) + kTask - 1) / kTask * kTask; row += kBlock) blocks.push_back({&part, row});
    if (interleaved) {
      const int64_t half = blocks.size() / 2;
      std::vector<std::pair<const Part*, int64_t>> pairs;
      for (int64_t b = 0; b < half; b++) pairs.insert(pairs.end(), {blocks[b], blocks[half + b]});
      blocks = pairs;
    }
    int64_t size = 0;
    for (size_t b = 0; b < blocks.size(); b += 2) {
      const Part &left = *blocks[b].first, &right = *blocks[b + 1].first;
      TORCH_CHECK(left.second == right.second && depth_of(left) == matrix.depth && depth_of(right) == matrix.depth && matrix.depth % 32 == 0,
                  "a packed matrix has one depth, a multiple of 32, and one format for two interleaved parts");
      TORCH_CHECK(left.first.is_contiguous() && right.first.is_contiguous(), "parts are contiguous");
      const int64_t bytes = 2 * block_bytes(format_of(left), matrix.depth);
      matrix.add({nullptr, format_of(left), bytes});
      size += bytes;
    }
    uint8_t* memory = take(size);
    matrix.memory = mappings_.back();
    for (auto& task : matrix.tasks) {
      task.data = memory;
      memory += task.bytes;
    }
    at::parallel_for(0, blocks.size(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; b++) {
        const Matrix::Task& task = matrix.tasks[b / 2];
        fill(*blocks[b].first, blocks[b].second, matrix.depth, task.data + b % 2 * (task.bytes / 2));
      }
    });
    return matrix;
  }

  // Some columns of another matrix, as they are packed there.
  Matrix gather(const Matrix& from, const int64_t* columns, int64_t count) {
    const Matrix::Task& first = from.tasks[0];
    const int64_t tasks = (count + kTask - 1) / kTask, G = from.depth / stored::kGroup, half = first.bytes / 2;
    Matrix matrix{{}, from.depth, {}};
    uint8_t* memory = take(tasks * first.bytes);
    matrix.memory = mappings_.back();
    for (int64_t i = 0; i < tasks; i++) matrix.add({memory + i * first.bytes, first.format, first.bytes});
    at::parallel_for(0, count, kTask, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; n++) {
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
    if (mappings_.empty() || taken_ + bytes > mappings_.back().numel()) {
      mappings_.push_back(huge_zeros({std::max(bytes, kMapping) / 2}).view(at::kByte));
      taken_ = 0;
    }
    taken_ += bytes;
    used_ += bytes;
    return mappings_.back().data_ptr<uint8_t>() + taken_ - bytes;
  }

  static void fill(const Part& part, int64_t row, int64_t depth, uint8_t* block) {
    const auto& [weights, number] = part;
    if (format_of(part) == Format::kBf16) return pack_block(weights, row, reinterpret_cast<bf16*>(block));
    const uint8_t* bytes = weights.data_ptr<uint8_t>() + row * weights.size(1);
    const int64_t G = depth / stored::kGroup, row_bytes = weights.size(1), rows = std::min<int64_t>(kBlock, weights.size(0) - row);
    stored::with_layout(format_of(part), [&](auto layout) {
      constexpr int64_t kNear = 8;  // groups of all columns are written before the next ones: they share cache lines
      for (int64_t first = 0; first < G; first += kNear)
        for (int64_t n = 0; n < rows; n++)
          for (int64_t g = first; g < std::min(first + kNear, G); g++)
            stored::write_group<decltype(layout)>(stored::read_group(format_of(part), bytes + n * row_bytes, g), g, G, n, block);
    });
  }

  std::vector<Tensor> mappings_;
  int64_t taken_ = 0, used_ = 0;  // bytes: of the last mapping, of all
};
