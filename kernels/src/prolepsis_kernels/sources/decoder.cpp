// The C face of the decoder, of its packed linear alone, and of its cache. Handles are pointers; all other memory is the caller's, and
// what is kept of it is copied.
#include "decoder.h"

#include <atomic>

#define FACE PROLEPSIS_EXPORT

namespace {

// Runs `work(data)` on several threads of torch, with the call `GOMP_parallel` of its OpenMP runtime.
using Parallel = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

// The few-row linear alone, for forwards that are not ours.
struct Linear {
  const bf16* x;  // [M, depth]
  int64_t M, depth;
  const bf16* packed;
  int64_t columns;
  const float* bias;  // [columns], or null
  float* out;         // [M, columns]
  int64_t threads;
  std::unique_ptr<Counter[]> counters = std::make_unique<Counter[]>(threads);
  std::atomic<int64_t> arrived{0};

  // A thread's share: a range of tasks, so that it reads memory in one stream, then what is left of the others' ranges.
  void work() {
    const int64_t tasks = (columns + kTask - 1) / kTask, me = arrived.fetch_add(1, std::memory_order_relaxed);
    for (int64_t i = 0; i < threads; i++) {
      const int64_t owner = (me + i) % threads, begin = tasks * owner / threads, end = tasks * (owner + 1) / threads;
      for (int64_t t; (t = begin + counters[owner].next.fetch_add(1, std::memory_order_relaxed)) < end;) run(t);
    }
#ifdef PROLEPSIS_AMX
    amx::release();
#endif
  }

  void run(int64_t task) const {
    alignas(64) float c[32 * kTask];
    task_product(x, depth, M, packed + task * kTask * depth, depth, c, [&](int64_t first, int rows, const float* sums) {
      const int64_t begin = task * kTask, end = std::min(columns, begin + kTask);
      for (int r = 0; r < rows; r++)
        for (int64_t n = begin; n < end; n++) out[(first + r) * columns + n] = sums[r * kTask + n - begin] + (bias ? bias[n] : 0.0f);
    });
  }
};

// Moves K/V of one sequence between slots in all layers.
struct PagedCache {
  bf16* data;  // [layers, pages, kv_heads, 2 * kPage * head_dim]
  int64_t layers, kv_heads, head_dim, layer_stride, page_stride;

  void move(const int64_t* pages, const int64_t* moves, int64_t count) const {
    const PageLayout layout{head_dim};
    for (int64_t l = 0; l < layers; l++)
      for (int64_t h = 0; h < kv_heads; h++)
        for (int64_t m = 0; m < count; m++) {
          const int64_t from = moves[2 * m], to = moves[2 * m + 1];
          const bf16* a = data + l * layer_stride + pages[from / kPage] * page_stride + h * layout.size();
          bf16* b = data + l * layer_stride + pages[to / kPage] * page_stride + h * layout.size();
          for (int64_t i = 0; i < head_dim; i++) {
            b[layout.key(to % kPage, i)] = a[layout.key(from % kPage, i)];
            b[layout.value(to % kPage, i)] = a[layout.value(from % kPage, i)];
          }
        }
  }
};

struct Vector {
  const float* data;
  int64_t size;
  operator Floats() const { return {data, data + size}; }
};

struct LayerInput {
  int64_t rope, window;
  float score_scale, score_cap, residual_scale;
  int32_t gelu;
  const Part *qkv, *gate_up;
  int64_t num_qkv, num_gate_up;
  Part o, down;
  Vector qkv_bias, before_attention, after_attention, before_feed_forward, after_feed_forward, queries, keys;
};

template <class Value>
std::vector<Value> taken(const Value* values, int64_t count) {
  return {values, values + count};
}

}  // namespace

FACE int64_t prolepsis_mapping(int64_t bytes) {
  return face::call([&] { return new Mapping(bytes); });
}
FACE int64_t prolepsis_mapping_data(const Mapping* mapping) {
  return face::call([&] { return mapping->data(); });
}
FACE int64_t prolepsis_mapping_free(Mapping* mapping) {
  return face::call([&] { delete mapping; });
}
FACE int64_t prolepsis_pack(const bf16* weight, int64_t rows, int64_t columns, bf16* packed) {
  return face::call([&] { pack(weight, rows, columns, packed); });
}
FACE int64_t prolepsis_multiply_registers(int64_t rounds) {
  return face::call([&] { return stored::multiply_registers(rounds); });
}
FACE int64_t prolepsis_multiply_in_cache(int64_t format, int64_t rows, int64_t rounds) {
  return face::call([&] { return stored::multiply_in_cache(static_cast<Format>(format), rows, rounds); });
}
FACE int64_t prolepsis_attend_in_cache(int64_t head_dim, int64_t group, int64_t tokens, int64_t cached, int64_t rounds) {
  return face::call([&] { return attend_in_cache(head_dim, group, tokens, cached, rounds); });
}
FACE int64_t prolepsis_linear(const bf16* x, int64_t M, int64_t depth, const bf16* packed, int64_t columns, const float* bias, float* out,
                              Parallel parallel, int64_t threads) {
  return face::call([&] {
    Linear linear{x, M, depth, packed, columns, bias, out, parallel ? threads : 1};
    if (linear.threads > 1)
      parallel([](void* data) { static_cast<Linear*>(data)->work(); }, &linear, linear.threads, 0);
    else
      linear.work();
  });
}
FACE int64_t prolepsis_move_slots(const PagedCache* cache, const int64_t* pages, const int64_t* moves, int64_t count) {
  return face::call([&] { cache->move(pages, moves, count); });
}

FACE int64_t prolepsis_decoder(const Shape* shape, int64_t threads, int64_t int8) {
  return face::call([&] { return new Decoder(*shape, threads, int8); });
}
FACE int64_t prolepsis_decoder_free(Decoder* decoder) {
  return face::call([&] { delete decoder; });
}
FACE int64_t prolepsis_decoder_head(const Decoder* target, const Shape* shape, int64_t int8) {
  return face::call([&] { return target->make_head(*shape, int8); });
}
FACE int64_t prolepsis_decoder_exit(const Decoder* target, int64_t layers, int64_t vocab) {
  return face::call([&] { return target->make_exit(layers, vocab); });
}
FACE int64_t prolepsis_decoder_team(const Decoder* decoder) {  // lives as long as a decoder on it
  return face::call([&] { return decoder->team().get(); });
}
FACE int64_t prolepsis_decoder_weight_bytes(const Decoder* decoder) {
  return face::call([&] { return decoder->weight_bytes(); });
}
FACE int64_t prolepsis_decoder_add_rope(Decoder* decoder, const float* cosine, const float* sine, int64_t positions, int64_t half) {
  return face::call([&] { decoder->add_rope(taken(cosine, positions * half), taken(sine, positions * half), half); });
}
FACE int64_t prolepsis_decoder_add_layer(Decoder* decoder, const LayerInput* layer) {
  return face::call([&] {
    const auto& l = *layer;
    decoder->add_layer({l.rope, {l.score_scale, l.score_cap, l.window}, l.residual_scale, l.gelu != 0}, taken(l.qkv, l.num_qkv), l.o,
                       taken(l.gate_up, l.num_gate_up), l.down, l.qkv_bias,
                       {l.before_attention, l.after_attention, l.before_feed_forward, l.after_feed_forward, l.queries, l.keys});
  });
}
FACE int64_t prolepsis_decoder_set_ends(Decoder* decoder, const Part* embedding, const Part* head, const Vector* norm) {
  return face::call([&] { decoder->set_ends(*embedding, head, *norm); });
}
FACE int64_t prolepsis_decoder_set_fusion(Decoder* head, const Part* fc, const Vector* embedding_norm, const Vector* state_norm,
                                          const Vector* features_norm, int64_t norm_before_residual, int64_t norm_output) {
  return face::call([&] { head->set_fusion(*fc, *embedding_norm, *state_norm, *features_norm, norm_before_residual, norm_output); });
}
FACE int64_t prolepsis_decoder_set_output(Decoder* head, const Part* output, const Vector* norm) {
  return face::call([&] { head->set_output(*output, *norm); });
}
FACE int64_t prolepsis_decoder_take_output(Decoder* head, const Decoder* target, const int64_t* ids, int64_t count, const Vector* norm) {
  return face::call([&] { head->take_output(*target, ids, count, *norm); });
}
FACE int64_t prolepsis_decoder_output_rows(const Decoder* decoder, const int64_t* ids, int64_t count, bf16* rows) {
  return face::call([&] { decoder->output_rows(ids, count, rows); });
}
FACE int64_t prolepsis_decoder_embedding_rows(const Decoder* decoder, const int64_t* ids, int64_t count, bf16* rows) {
  return face::call([&] { decoder->embedding_rows(ids, count, rows); });
}
FACE int64_t prolepsis_decoder_set_levels(Decoder* head, int64_t count, int64_t width, const bf16* enter, const bf16* leave,
                                          const bf16* state, const bf16* out, const bf16* output, const bf16* tokens,
                                          const int64_t* target_ids) {
  return face::call([&] { head->set_levels(count, width, enter, leave, state, out, output, tokens, target_ids); });
}

FACE int64_t prolepsis_decoder_forward(Decoder* decoder, const PassInput* input, float* logits, const int64_t* taps, int64_t num_taps,
                                       bf16* features, int64_t* argmax) {
  return face::call([&] { decoder->forward(*input, logits, taken(taps, num_taps), features, argmax); });
}
FACE int64_t prolepsis_decoder_draft(Decoder* head, const PassInput* input, const bf16* features, const float* states, int64_t width,
                                     float* logits, float* states_after) {
  return face::call([&] { head->draft(*input, features, states, width, logits, states_after); });
}
FACE int64_t prolepsis_decoder_look_ahead(Decoder* head, const PassInput* input, const bf16* features, int64_t width, float* logits,
                                          float* states, float* ahead, float* entered) {
  return face::call([&] { head->look_ahead(*input, features, width, logits, states, ahead, entered); });
}
FACE int64_t prolepsis_decoder_top_k(const Decoder* decoder, const float* logits, int64_t rows, int64_t size, int64_t count, int* ids,
                                     float* logs) {
  return face::call([&] { decoder->top_k(logits, rows, size, count, ids, logs); });
}
FACE int64_t prolepsis_decoder_follow(const Decoder* head, const float* ahead, const float* entered, int64_t rows, const int* shortlist,
                                      int64_t size, const Drafted* drafted, int64_t num_drafted, int64_t count, int* ids, float* logs) {
  return face::call([&] { head->follow(ahead, entered, rows, shortlist, size, taken(drafted, num_drafted), count, ids, logs); });
}
// Writes the number of nodes of each tree, and its nodes where those of the trees before it with all of their budgets would end.
FACE int64_t prolepsis_decoder_trees(Decoder* head, const PassInput* input, const bf16* features, int64_t width, int64_t shortlist,
                                     const TreeParams* params, const TreeSpec* specs, int64_t* counts, int64_t* tokens, int64_t* parents,
                                     double* survival, double* chances) {
  return face::call([&] {
    int64_t place = 0;
    for (const DraftTree& tree : head->trees(*input, features, width, shortlist, *params, specs)) {
      *counts++ = tree.tokens.size();
      std::copy(tree.tokens.begin(), tree.tokens.end(), tokens + place);
      std::copy(tree.parents.begin(), tree.parents.end(), parents + place);
      std::copy(tree.survival.begin(), tree.survival.end(), survival + place);
      std::copy(tree.chances.begin(), tree.chances.end(), chances + place);
      place += specs++->node_budget;
    }
  });
}
