// One pass of a Llama-shaped decoder over a flat batch, for any number of rows, on bf16 weights packed once.
//
// A pass is one job of a small thread team. Threads take tasks (32 columns of a linear, one tile and KV head of attention, one
// token of the rest) from a shared counter, so a thread that loses its core for a while delays nobody; which thread computes a
// task does not change its bits. The residual stream and all sums are float32; what enters a product is bf16.
#include <torch/extension.h>

#include <array>
#include <optional>

#include "attention.h"
#include "memory.h"
#include "threads.h"

namespace {

using at::Tensor;

struct Shape {
  int64_t hidden, heads, kv_heads, head_dim, intermediate, vocab;
  double eps;
};

bf16* bits(const Tensor& t) { return reinterpret_cast<bf16*>(t.data_ptr()); }
const float* floats(const std::optional<Tensor>& t) { return t ? t->data_ptr<float>() : nullptr; }

std::array<int64_t, 4> packed_sizes(const Tensor& weight) {
  const int64_t rows = (weight.size(0) + kTask - 1) / kTask * kTask, depth = (weight.size(1) + 31) / 32 * 32;
  return {rows / 16, depth / 2, 16, 2};
}

// [N, K] bf16 -> [N/16][K/2][16][2], with N padded to 32 and K to 32 by zeros.
void pack_into(const Tensor& weight, const Tensor& packed) {
  const int64_t blocks = packed.size(0), depth = packed.size(1) * 2;
  Tensor padded = at::constant_pad_nd(weight, {0, depth - weight.size(1), 0, blocks * 16 - weight.size(0)});
  packed.copy_(padded.view({blocks, 16, depth / 2, 2}).transpose(1, 2));
}

Tensor pack(const Tensor& weight) {
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

struct Layer {
  Tensor qkv, o, gate_up, down, input_norm, post_norm;
  std::optional<Tensor> qkv_bias, q_norm, k_norm;
};

struct alignas(64) Counter {
  std::atomic<int> next{0};
};

struct Buffers {  // of one pass
  Tensor hidden, x, qkv, attention, activation;
};

class Decoder {
 public:
  Decoder(int64_t layers, bool tied, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t intermediate,
          int64_t vocab, double eps, Tensor cosine, Tensor sine, int threads)
      : shape_{hidden, heads, kv_heads, head_dim, intermediate, vocab, eps}, cosine_(cosine), sine_(sine), team_(threads) {
    TORCH_CHECK(hidden % 32 == 0 && intermediate % 32 == 0 && head_dim % 32 == 0 && heads % kv_heads == 0,
                "the native forward takes widths that are multiples of 32");
    const int64_t wide = (2 * heads + 2 * kv_heads) * head_dim + 3 * intermediate, rows = (vocab + kTask - 1) / kTask * kTask;
    arena_.reserve(hidden * (layers * wide + rows * (tied ? 1 : 2)));
    for (int i = 0; i < threads; i++) attention_.emplace_back(head_dim, heads / kv_heads);
  }

  void add_layer(Tensor qkv, Tensor o, Tensor gate_up, Tensor down, Tensor input_norm, Tensor post_norm,
                 std::optional<Tensor> qkv_bias, std::optional<Tensor> q_norm, std::optional<Tensor> k_norm) {
    layers_.push_back({arena_.pack(qkv), arena_.pack(o), arena_.pack(interleave(gate_up)), arena_.pack(down), input_norm, post_norm,
                       qkv_bias, q_norm, k_norm});
  }

  void set_ends(Tensor embedding, std::optional<Tensor> head, Tensor norm) {
    embedding_ = arena_.pack(embedding);
    head_ = head ? arena_.pack(*head) : embedding_;
    norm_ = norm;
  }

  int64_t weight_bytes() const { return arena_.bytes(); }

  // Also writes, where `taps` names layers, the hidden states that enter them into features [T, taps * hidden] (bf16). The number
  // of layers names what leaves the last one, before the final norm.
  Tensor forward(Tensor tokens, Tensor positions, Tensor parents, Tensor starts, Tensor cached, Tensor pages, Tensor logit_rows,
                 Tensor cache, const std::vector<int64_t>& taps, std::optional<Tensor> features) {
    const int64_t T = tokens.size(0), L = logit_rows.size(0), width = taps.size() * shape_.hidden;
    TORCH_CHECK(taps.empty() || (features && features->sizes() == at::IntArrayRef({T, width}) && features->is_contiguous() &&
                                 features->scalar_type() == at::kBFloat16),
                "features are [tokens, taps * hidden] bf16");
    Pass pass{*this, tokens.data_ptr<int>(), positions.data_ptr<int>(), logit_rows.data_ptr<int>(), T, L, bits(cache), cache.stride(1),
              cache.stride(0)};
    for (int64_t s = 0; s < cached.size(0); s++) {
      const int start = starts.data_ptr<int>()[s], end = starts.data_ptr<int>()[s + 1];
      pass.sequences.push_back({start, end - start, cached.data_ptr<int>()[s], pages.data_ptr<int>() + s * pages.size(1)});
      for (int t = start; t < end; t++) pass.sequence_of.push_back(s);
    }
    pass.tiles = make_tiles(pass.sequences, parents.data_ptr<int>(), shape_.heads / shape_.kv_heads);
    pass.taps = taps;
    pass.features = features ? bits(*features) : nullptr;
    Tensor logits = at::empty({L, shape_.vocab}, at::kFloat);
    pass.prepare(logits);
    team_.run([&] { pass.run(); });
    return logits;
  }

 private:
  // Interleaves blocks of 16 gate and 16 up columns, so that a task holds both halves of its product.
  static Tensor interleave(const Tensor& weight) {
    const int64_t n = weight.size(0) / 2, k = weight.size(1);
    return weight.view({2, n / 16, 16, k}).transpose(0, 1).reshape({2 * n, k});
  }

  struct Pass {
    Decoder& model;
    const int *tokens, *positions, *logit_rows;
    const int64_t T, L;
    bf16* cache;
    const int64_t page_stride, layer_stride;  // elements
    std::vector<Sequence> sequences = {};
    std::vector<int> sequence_of = {};
    std::vector<Tile> tiles = {};
    std::vector<Counter> counters = {};
    Buffers buffers = {};
    std::vector<int64_t> taps = {};
    bf16* features = nullptr;
    float *hidden = nullptr, *qkv = nullptr, *logits = nullptr;
    bf16 *x = nullptr, *queries = nullptr, *attention = nullptr, *activation = nullptr;

    void prepare(const Tensor& out) {
      const Shape& s = model.shape_;
      const int64_t wide = (s.heads + 2 * s.kv_heads) * s.head_dim;
      buffers.hidden = at::empty({T, s.hidden}, at::kFloat);
      buffers.qkv = at::empty({T, wide}, at::kFloat);
      buffers.x = at::empty({T, s.hidden}, at::kBFloat16);
      buffers.attention = at::empty({2, T, s.heads * s.head_dim}, at::kBFloat16);
      buffers.activation = at::empty({T, s.intermediate}, at::kBFloat16);
      hidden = buffers.hidden.data_ptr<float>();
      qkv = buffers.qkv.data_ptr<float>();
      x = bits(buffers.x);
      queries = bits(buffers.attention);
      attention = queries + T * s.heads * s.head_dim;
      activation = bits(buffers.activation);
      logits = out.data_ptr<float>();
      counters = std::vector<Counter>((8 * model.layers_.size() + 5) * model.team_.size());
    }

    // Calls task(0 .. count-1), each on one thread, and waits for all of them. Each thread works through a range of its own,
    // so that it reads memory in one stream, then helps with what is left of the others' ranges.
    // Done with that, a thread fetches its first task of the linear `next` while it waits for the others.
    template <class Task>
    void share(int& phase, int64_t count, const Task& task, const Tensor* next = nullptr) {
      const int n = model.team_.size(), me = Team::me;
      for (int i = 0; i < n; i++) {
        const int owner = (me + i) % n;
        auto& taken = counters[phase * n + owner].next;
        const int64_t begin = count * owner / n, end = count * (owner + 1) / n;
        for (int64_t t; (t = begin + taken.fetch_add(1, std::memory_order_relaxed)) < end;) task(t);
      }
      if (next) {
        const int64_t blocks = next->size(0), block = next->size(1) * 32;
        const bf16* first = bits(*next) + blocks / 2 * me / n * 2 * block;
        for (int64_t i = 0; i < 2 * block; i += 32) _mm_prefetch(reinterpret_cast<const char*>(first + i), _MM_HINT_T1);
      }
      phase++;
      model.team_.barrier();
    }

    // Shares the columns of x [M, K] times packed weights; epilogue(first_row, rows, task, c[rows][32]).
    template <class Epilogue>
    void linear(int& phase, const bf16* input, int64_t M, int64_t K, const Tensor& packed, const Epilogue& epilogue) {
      alignas(64) float c[32 * kTask];
      share(phase, packed.size(0) / 2, [&](int64_t task) {
        task_product(input, K, M, bits(packed), K, task, c,
                     [&](int64_t first, int rows, const float* sums) { epilogue(first, rows, task, sums); });
      });
    }

    // `layer`: whose input this is; -1 for one that cannot be tapped.
    void normalise(int& phase, const Tensor& weight, const Tensor& next, int64_t layer = -1) {
      const Shape& s = model.shape_;
      const auto task = [&](int64_t t) {
        tap(layer, t);
        rms_norm(hidden + t * s.hidden, weight.data_ptr<float>(), s.eps, s.hidden, x + t * s.hidden);
      };
      share(phase, T, task, &next);
    }

    // Writes the hidden state of token t, which enters `layer`, to the features if that layer is tapped.
    void tap(int64_t layer, int64_t t) {
      const int64_t width = model.shape_.hidden;
      for (size_t i = 0; i < taps.size(); i++) {
        if (taps[i] != layer) continue;
        bf16* to = features + (t * taps.size() + i) * width;
        for (int64_t k = 0; k < width; k += 16) lanes::store_bf16(to + k, lanes::load(hidden + t * width + k));
      }
    }

    void add_to_hidden(int& phase, const bf16* input, int64_t K, const Tensor& packed) {
      const int64_t width = model.shape_.hidden;
      linear(phase, input, T, K, packed, [&](int64_t first, int rows, int64_t task, const float* c) {
        for (int r = 0; r < rows; r++)
          for (int h = 0; h < kTask; h += 16) {
            float* target = hidden + (first + r) * width + task * kTask + h;
            lanes::store(target, lanes::add(lanes::load(target), lanes::load(c + r * kTask + h)));
          }
      });
    }

    void embed(int& phase) {
      const int64_t width = model.shape_.hidden;
      const bf16* table = bits(model.embedding_);
      share(phase, T, [&](int64_t t) {
        const bf16* row = table + (tokens[t] / 16) * width * 16 + (tokens[t] % 16) * 2;
        for (int64_t k = 0; k < width; k++) {
          const uint32_t wide = uint32_t(row[(k / 2) * 32 + (k & 1)]) << 16;
          std::memcpy(hidden + t * width + k, &wide, 4);
        }
      });
    }

    void project(int& phase, const Layer& layer) {
      const Shape& s = model.shape_;
      const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
      const float* bias = floats(layer.qkv_bias);
      linear(phase, x, T, s.hidden, layer.qkv, [&](int64_t first, int rows, int64_t task, const float* c) {
        for (int r = 0; r < rows; r++)
          for (int h = 0; h < kTask; h += 16) {
            Lanes sum = lanes::load(c + r * kTask + h);
            if (bias) sum = lanes::add(sum, lanes::load(bias + task * kTask + h));
            lanes::store(qkv + (first + r) * width + task * kTask + h, sum);
          }
      });
    }

    // Rotates queries and keys of one token and writes its K/V into its slot.
    void place(const Layer& layer, int64_t t, bf16* pages) {
      const Shape& s = model.shape_;
      const int64_t d = s.head_dim;
      float* row = qkv + t * (s.heads + 2 * s.kv_heads) * d;
      const float *cosine = model.cosine_.data_ptr<float>() + positions[t] * (d / 2), *sine = model.sine_.data_ptr<float>() + positions[t] * (d / 2);
      for (int64_t h = 0; h < s.heads; h++) {
        norm_and_rotate(row + h * d, d, floats(layer.q_norm), s.eps, cosine, sine);
        for (int64_t i = 0; i < d; i += 16) lanes::store_bf16(queries + (t * s.heads + h) * d + i, lanes::load(row + h * d + i));
      }
      const Sequence& sequence = sequences[sequence_of[t]];
      const int slot = sequence.cached + t - sequence.start;
      const PageLayout layout{d};
      for (int64_t h = 0; h < s.kv_heads; h++) {
        float *key = row + (s.heads + h) * d, *value = row + (s.heads + s.kv_heads + h) * d;
        norm_and_rotate(key, d, floats(layer.k_norm), s.eps, cosine, sine);
        bf16* page = pages + sequence.pages[slot / kPage] * page_stride + h * layout.size();
        for (int64_t i = 0; i < d; i++) {
          page[layout.key(slot % kPage, i)] = to_bf16(key[i]);
          page[layout.value(slot % kPage, i)] = to_bf16(value[i]);
        }
      }
    }

    void attend(int& phase, const bf16* pages, const Tensor& next) {
      const Shape& s = model.shape_;
      const float scale = 1.0f / std::sqrt((float)s.head_dim);
      const PageLayout layout{s.head_dim};
      const auto task = [&](int64_t i) {
        const Tile& tile = tiles[i / s.kv_heads];
        const int64_t h = i % s.kv_heads;
        model.attention_[Team::me].run(tile, sequences[tile.sequence], positions, queries, s.heads, h, pages + h * layout.size(), page_stride,
                                       scale, attention);
      };
      share(phase, tiles.size() * s.kv_heads, task, &next);
    }

    void feed_forward(int& phase, const Layer& layer) {
      const Shape& s = model.shape_;
      linear(phase, x, T, s.hidden, layer.gate_up, [&](int64_t first, int rows, int64_t task, const float* c) {
        for (int r = 0; r < rows; r++) {
          const Lanes gate = lanes::load(c + r * kTask), up = lanes::load(c + r * kTask + 16);
          lanes::store_bf16(activation + (first + r) * s.intermediate + task * 16, lanes::mul(silu(gate), up));
        }
      });
      add_to_hidden(phase, activation, s.intermediate, layer.down);
    }

    void finish(int& phase) {
      const Shape& s = model.shape_;
      share(phase, L, [&](int64_t i) {
        rms_norm(hidden + logit_rows[i] * s.hidden, model.norm_.data_ptr<float>(), s.eps, s.hidden, x + i * s.hidden);
      });
      linear(phase, x, L, s.hidden, model.head_, [&](int64_t first, int rows, int64_t task, const float* c) {
        const int64_t columns = std::min<int64_t>(kTask, s.vocab - task * kTask);
        for (int r = 0; r < rows && columns > 0; r++)
          std::copy_n(c + r * kTask, columns, logits + (first + r) * s.vocab + task * kTask);
      });
    }

    void run() {
      int phase = 0;
      embed(phase);
      for (size_t l = 0; l < model.layers_.size(); l++) {
        const Layer& layer = model.layers_[l];
        bf16* pages = cache + l * layer_stride;
        normalise(phase, layer.input_norm, layer.qkv, l);
        project(phase, layer);
        share(phase, T, [&](int64_t t) { place(layer, t, pages); });
        attend(phase, pages, layer.o);
        add_to_hidden(phase, attention, model.shape_.heads * model.shape_.head_dim, layer.o);
        normalise(phase, layer.post_norm, layer.gate_up);
        feed_forward(phase, layer);
      }
      if (const int64_t last = model.layers_.size(); std::find(taps.begin(), taps.end(), last) != taps.end())
        share(phase, T, [&](int64_t t) { tap(last, t); });
      finish(phase);
#ifdef PROLEPSIS_AMX
      amx::release();
#endif
    }
  };

  const Shape shape_;
  const Tensor cosine_, sine_;
  Team team_;
  std::vector<TileAttention> attention_;
  Arena arena_;
  std::vector<Layer> layers_;
  Tensor embedding_, head_, norm_;
};

// The few-row linear by itself, for forwards that are not ours: x [M, K] bf16 times packed weights, any M. It runs on torch's
// own threads, as its neighbours do (the OpenMP symbols resolve to the runtime that torch has loaded).
Tensor linear(const Tensor& x, const Tensor& packed, int64_t columns, const std::optional<Tensor>& bias) {
  const int64_t depth = packed.size(1) * 2, M = x.size(0), tasks = packed.size(0) / 2;
  const Tensor input = x.size(1) == depth ? x.contiguous() : at::constant_pad_nd(x, {0, depth - x.size(1)});
  Tensor out = at::empty({M, columns}, at::kFloat);
  float* to = out.data_ptr<float>();
  const float* offset = floats(bias);
#pragma omp parallel num_threads(at::get_num_threads())
  {
    alignas(64) float c[32 * kTask];
#pragma omp for schedule(static)
    for (int64_t task = 0; task < tasks; task++)
      task_product(bits(input), depth, M, bits(packed), depth, task, c, [&](int64_t first, int rows, const float* sums) {
        const int64_t begin = task * kTask, end = std::min(columns, begin + kTask);
        for (int r = 0; r < rows; r++)
          for (int64_t n = begin; n < end; n++)
            to[(first + r) * columns + n] = sums[r * kTask + n - begin] + (offset ? offset[n] : 0.0f);
      });
#ifdef PROLEPSIS_AMX
    amx::release();
#endif
  }
  return out;
}

// Moves K/V of one sequence between slots in all layers; cache [layers, pages, kv_heads, 2 * 32 * d].
void move_slots(const Tensor& cache, const std::vector<int64_t>& pages, const std::vector<std::pair<int64_t, int64_t>>& moves) {
  const PageLayout layout{cache.size(3) / (2 * kPage)};
  for (int64_t l = 0; l < cache.size(0); l++)
    for (int64_t h = 0; h < cache.size(2); h++)
      for (const auto& [from, to] : moves) {
        const bf16* a = bits(cache) + l * cache.stride(0) + pages[from / kPage] * cache.stride(1) + h * cache.stride(2);
        bf16* b = bits(cache) + l * cache.stride(0) + pages[to / kPage] * cache.stride(1) + h * cache.stride(2);
        for (int64_t i = 0; i < layout.head_dim; i++) {
          b[layout.key(to % kPage, i)] = a[layout.key(from % kPage, i)];
          b[layout.value(to % kPage, i)] = a[layout.value(from % kPage, i)];
        }
      }
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using Release = pybind11::call_guard<pybind11::gil_scoped_release>;
  m.def("pack", &pack);
  m.def("huge_zeros", [](const std::vector<int64_t>& sizes) { return huge_zeros(sizes); });
  m.def("linear", &linear, Release());
  m.def("move_slots", &move_slots, Release());
  pybind11::class_<Decoder>(m, "Decoder")
      .def(pybind11::init<int64_t, bool, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, double, Tensor, Tensor, int>())
      .def("add_layer", &Decoder::add_layer)
      .def("set_ends", &Decoder::set_ends)
      .def("weight_bytes", &Decoder::weight_bytes)
      .def("forward", &Decoder::forward, Release());
}
