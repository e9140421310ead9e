// Weights as the products read them (packing.h), and the memory they lie in.
#pragma once
#include <torch/extension.h>

#include <array>
#include <optional>

#include "lanes.h"
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

// All packed weights of a model side by side in one mapping.
class Arena {
 public:
  void reserve(int64_t elements) { memory_ = huge_zeros({elements}); }

  Tensor pack(const Tensor& weight) {
    const auto sizes = packed_sizes(weight);
    const int64_t count = c10::multiply_integers(sizes);
    TORCH_CHECK(used_ + count <= memory_.numel(), "more weights than the shape says");
    Tensor packed = memory_.narrow(0, used_, count).view(sizes);
    used_ += count;
    pack_into(weight, packed);
    return packed;
  }

  int64_t bytes() const { return used_ * 2; }

 private:
  Tensor memory_;
  int64_t used_ = 0;
};

// Row `row` of a packed matrix whose rows have `width` elements.
inline void unpack_row(const Tensor& packed, int64_t row, int64_t width, bf16* target) {
  const bf16* from = bits(packed) + (row / 16) * width * 16 + (row % 16) * 2;
  for (int64_t k = 0; k < width; k += 2) std::memcpy(target + k, from + k * 16, 4);
}
