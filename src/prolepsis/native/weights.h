// Weights as the products read them (packing.h), and the memory they lie in.
#pragma once
#include <torch/extension.h>

#include <array>
#include <optional>

#include "eight_bits.h"
#include "memory.h"
#include "packing.h"

using at::Tensor;

inline bf16* bits(const Tensor& t) { return reinterpret_cast<bf16*>(t.data_ptr()); }
inline const float* floats(const std::optional<Tensor>& t) { return t ? t->data_ptr<float>() : nullptr; }

inline std::array<int64_t, 4> packed_sizes(const Tensor& weight) {
  const int64_t rows = (weight.size(0) + kTask - 1) / kTask * kTask, depth = (weight.size(1) + 31) / 32 * 32;
  return {rows / 16, depth / 2, 16, 2};
}

// [N, K] bf16 -> [N/16][K/2][16][2], with N padded to 32 and K to 32 by zeros.
inline void pack_into(const Tensor& weight, const Tensor& packed) {
  const int64_t blocks = packed.size(0), depth = packed.size(1) * 2;
  Tensor padded = at::constant_pad_nd(weight, {0, depth - weight.size(1), 0, blocks * 16 - weight.size(0)});
  packed.copy_(padded.view({blocks, 16, depth / 2, 2}).transpose(1, 2));
}

inline Tensor pack(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == at::kBFloat16, "pack takes a bf16 matrix, got ", weight.sizes(), " ",
              weight.scalar_type());
  Tensor packed = at::empty(packed_sizes(weight), weight.options());
  pack_into(weight, packed);
  return packed;
}

// [N, K] bf16 -> groups of 8 bits (eight_bits.h) as bytes [N/16][G][sizeof group], with N padded to 32 and K to 64 by zeros.
inline void quantise_into(const Tensor& weight, const Tensor& packed) {
  const int64_t blocks = packed.size(0), G = packed.size(1);
  Tensor padded = at::constant_pad_nd(weight.to(at::kFloat), {0, G * eight::kGroup - weight.size(1), 0, blocks * kBlock - weight.size(0)});
  padded = padded.view({blocks, kBlock, G, eight::kGroup}).transpose(1, 2);
  const Tensor scales = padded.abs().amax(3, true) / 127;
  const Tensor whole = at::round(padded / scales.clamp_min(1e-30)) + 128;
  constexpr int64_t kWeights = kBlock * eight::kGroup;
  packed.narrow(2, 0, kWeights).view({blocks, G, eight::kGroup / 4, kBlock, 4}).copy_(whole.unflatten(3, {-1, 4}).transpose(2, 3));
  packed.narrow(2, kWeights, kBlock * sizeof(float)).view(at::kFloat).copy_(scales.squeeze(3));
}

enum class Precision { kBf16, k8Bit };

// A packed matrix [N, K] of a decoder's linear.
struct Matrix {
  Tensor packed;
  Precision precision = Precision::kBf16;
  int64_t depth = 0;  // K

  int64_t tasks() const { return packed.size(0) / 2; }
  int64_t task_bytes() const { return 2 * packed.stride(0) * packed.element_size(); }
  const eight::WeightGroup* groups() const { return reinterpret_cast<const eight::WeightGroup*>(packed.data_ptr()); }

  // The first `columns` columns, a multiple of 32.
  Matrix first(int64_t columns) const { return {packed.narrow(0, 0, columns / kBlock), precision, depth}; }
};

inline Matrix in_bf16(const Tensor& weight) { return {pack(weight), Precision::kBf16, weight.size(1)}; }

// All packed weights of a model side by side in one mapping.
class Arena {
 public:
  explicit Arena(Precision precision = Precision::kBf16) : precision_(precision) {}

  // Room for `elements` weights; in 8 bits twice that of bf16, as a short K is padded to 64. Only what is used takes memory.
  void reserve(int64_t elements) { memory_ = huge_zeros({elements * (precision_ == Precision::k8Bit ? 2 : 1)}).view(at::kByte); }

  Matrix pack(const Tensor& weight) {
    const int64_t depth = weight.size(1);
    auto sizes = packed_sizes(weight);
    if (precision_ == Precision::kBf16) {
      Tensor packed = take(c10::multiply_integers(sizes) * 2).view(at::kBFloat16).view(sizes);
      pack_into(weight, packed);
      return {packed, precision_, depth};
    }
    const int64_t blocks = sizes[0], G = eight::groups_of(depth), bytes = sizeof(eight::WeightGroup);
    Tensor packed = take(blocks * G * bytes).view({blocks, G, bytes});
    quantise_into(weight, packed);
    return {packed, precision_, depth};
  }

  int64_t bytes() const { return used_; }

 private:
  Tensor take(int64_t bytes) {
    TORCH_CHECK(used_ + bytes <= memory_.numel(), "more weights than the shape says");
    used_ += bytes;
    return memory_.narrow(0, used_ - bytes, bytes);
  }

  const Precision precision_;
  Tensor memory_;
  int64_t used_ = 0;
};

// Row `row` of a packed matrix whose rows have `width` elements.
inline void unpack_row(const Tensor& packed, int64_t row, int64_t width, bf16* target) {
  const bf16* from = bits(packed) + (row / 16) * width * 16 + (row % 16) * 2;
  for (int64_t k = 0; k < width; k += 2) std::memcpy(target + k, from + k * 16, 4);
}
