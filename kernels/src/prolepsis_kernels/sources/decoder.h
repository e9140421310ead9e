// One pass of a decoder over a flat batch, for any number of rows, on weights packed once.
//
// A pass is one job of a small thread team. Threads take tasks (32 columns of a linear, one tile and KV head of attention, one
// token of the rest) from a shared counter, so a thread that loses its core for a while does not delay the others. Which thread
// computes a task does not change its bits. The residual stream and all sums are float32; inputs of products are bf16.
//
// A draft head is such a decoder of one layer. It starts from the target's hidden states, or from its own of the draft so far,
// and also takes each token's embedding (EAGLE-3, arXiv 2503.01840).
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "argmax.h"
#include "attention.h"
#include "draft_tree.h"
#include "threads.h"
#include "weights.h"

struct Shape {
  int64_t hidden, heads, kv_heads, head_dim, intermediate, vocab;
  double eps;
  float embedding_scale = 1.0f, logit_scale = 1.0f;
  float logit_cap = 0.0f;  // scaled logits x become cap * tanh(x / cap); 0: they stay
};

struct LayerShape {  // what layers of one model may differ in
  int64_t rope;      // which rotation of the decoder; -1: none
  Scoring scoring;
  float residual_scale;  // factor on what attention and feed-forward add to the hidden state
  bool gelu;             // otherwise SiLU
};

struct Norms {  // of a layer; those that it lacks are empty
  Floats before_attention, after_attention, before_feed_forward, after_feed_forward;
  Floats queries, keys;  // [head_dim], or [heads * head_dim] for all heads of a token at once
};

struct Layer {
  LayerShape shape;
  Matrix qkv, o, gate_up, down;
  Floats qkv_bias;
  Norms norms;
};

// A rotary embedding: cosine and sine [positions, half] of the angles of pairs (i, i + half) of a head.
struct Rope {
  Floats cosine, sine;
  int64_t half;
};

// How a draft head enters its layer: x = [norm(embedding of the token), norm(g)], residual g. For the target's hidden states
// g = fc(norm(features)), without that norm where `features_norm` is empty; for drafted tokens g is the head's own output.
struct Fusion {
  Matrix embedding, fc;
  Floats embedding_norm, state_norm, features_norm;
  bool norm_before_residual, norm_output;
};

struct alignas(64) Counter {
  std::atomic<int> next{0};
};

struct Rows {  // in 8 bits, as the formats of weights take them; null where products take bf16
  stored::RowGroup* groups = nullptr;
  stored::RowSuper* supers = nullptr;
};

struct Input {  // of a linear
  const bf16* x;  // [M, K]
  Rows rows;      // the same in 8 bits
};

struct Buffers {  // of one pass
  Buffer<float> hidden, added, qkv;
  Buffer<bf16> x, attention, activation, fused, raised;
  Buffer<stored::RowGroup> groups;
  Buffer<stored::RowSuper> supers;
};

// What a pass computes (engine/models/protocol.py), and the pages that it reads and writes: [layers, pages, kv_heads, 2 * kPage * d].
struct PassInput {
  const int *tokens, *positions, *parents, *starts, *cached, *pages, *logit_rows;
  int64_t num_tokens, num_sequences, pages_of_each, num_logit_rows;
  bf16* cache;
  int64_t layer_stride, page_stride;  // elements
};

class Decoder {
 public:
  // `int8`: products with stored weights take rows in 8 bits; otherwise these weights are expanded to bf16 task by task.
  Decoder(const Shape& shape, int threads, bool int8) : Decoder(shape, std::make_shared<Team>(threads, std::chrono::milliseconds(4)), int8) {}

  std::shared_ptr<Team> team() const { return team_; }

  // Returns a draft head without weights yet, for this target: same hidden size, rotation, embedding and threads.
  Decoder* make_head(const Shape& shape, bool int8) const {
    check(shape.hidden == shape_.hidden, "a draft head has its target's hidden size, ", shape_.hidden, "; given ", shape.hidden);
    auto head = std::unique_ptr<Decoder>(new Decoder(shape, team_, int8));
    head->ropes_ = ropes_;
    head->fusion_.emplace();
    head->fusion_->embedding = embedding_;
    return head.release();
  }

  // Returns the first `layers` layers with this target's final norm and the first `vocab` rows of its output: a decoder of its own on
  // the same weights and threads, for the same cache (early exit, LayerSkip, arXiv 2404.16710).
  Decoder* make_exit(int64_t layers, int64_t vocab) const {
    check(!fusion_ && 0 < layers && layers <= (int64_t)layers_.size(), "an exit after ", layers, " layers; allowed: 1 to ", layers_.size());
    check(0 < vocab && vocab <= shape_.vocab && vocab % kTask == 0, "an exit has a multiple of ", kTask, " tokens; given ", vocab);
    Shape shape = shape_;
    shape.vocab = vocab;
    auto early = std::unique_ptr<Decoder>(new Decoder(shape, team_, int8_));
    early->ropes_ = ropes_;
    early->layers_.assign(layers_.begin(), layers_.begin() + layers);
    early->embedding_ = embedding_;
    early->head_ = head_.first(vocab);
    early->norm_ = norm_;
    early->is_stored_ = is_stored_;
    return early.release();
  }

  void set_fusion(const Part& fc, Floats embedding_norm, Floats state_norm, Floats features_norm, bool norm_before_residual, bool norm_output) {
    check(fusion_.has_value(), "only a draft head fuses");
    check_size(embedding_norm, shape_.hidden, "the norm of embeddings");
    check_size(state_norm, shape_.hidden, "the norm of states");
    if (!features_norm.empty()) check_size(features_norm, fc.depth(), "the norm of features");
    *fusion_ = {fusion_->embedding, pack({fc}), std::move(embedding_norm), std::move(state_norm), std::move(features_norm),
                norm_before_residual, norm_output};
  }

  void set_output(const Part& head, Floats norm) {
    check_size(norm, shape_.hidden, "the final norm");
    head_ = pack({head});
    norm_ = std::move(norm);
  }

  // Takes some rows of the target's output, as they are packed there, for a draft head's.
  void take_output(const Decoder& target, const int64_t* ids, int64_t count, Floats norm) {
    check_size(norm, shape_.hidden, "the final norm");
    check_ids(target.head_, ids, count);
    is_stored_ |= target.head_.tasks[0].format != Format::kBf16;
    head_ = arena_.gather(*team_, target.head_, ids, count);
    norm_ = std::move(norm);
  }

  // Some rows of the output, or of the embedding, [count, hidden].
  void output_rows(const int64_t* ids, int64_t count, bf16* to) const { unpack(head_, ids, count, to); }
  void embedding_rows(const int64_t* ids, int64_t count, bf16* to) const { unpack(fusion_ ? fusion_->embedding : embedding_, ids, count, to); }

  // Gives a draft head its `count` levels: enter [count, width, hidden], leave [count, hidden, width], state [width, hidden], out
  // [hidden, width] and the output head [vocab, hidden]; `target_ids` [vocab] are its tokens, and `tokens` [vocab, width] is what each of
  // them gives (engine/models/heads/levels.py, `of_tokens`).
  void set_levels(int64_t count, int64_t width, const bf16* enter, const bf16* leave, const bf16* state, const bf16* out, const bf16* head,
                  const bf16* tokens, const int64_t* target_ids) {
    check(fusion_ && width % kTask == 0, "levels of a draft head, a multiple of ", kTask, " wide");
    const int64_t hidden = shape_.hidden, vocab = shape_.vocab;
    const auto packed = [&](const bf16* weight, int64_t rows, int64_t columns) {
      return pack({{weight, rows, columns, static_cast<int64_t>(Format::kBf16)}});
    };
    levels_ = Levels{count, width, packed(enter, count * width, hidden), packed(state, width, hidden), {}, {out, out + hidden * width},
                     {head, head + vocab * hidden}, {tokens, tokens + vocab * width}, {target_ids, target_ids + vocab}};
    for (int64_t i = 0; i < count; i++) levels_->leave.push_back(packed(leave + i * hidden * width, hidden, width));
  }

  // Adds a rotation, [positions, half] both, which layers name by its number.
  void add_rope(Floats cosine, Floats sine, int64_t half) {
    check(cosine.size() == sine.size() && half > 0 && half % 16 == 0 && 2 * half <= shape_.head_dim,
          "a rotation is [positions, half], half a multiple of 16, at most half a head of ", shape_.head_dim, "; given ", half);
    ropes_.push_back(std::make_shared<const Rope>(Rope{std::move(cosine), std::move(sine), half}));
  }

  // qkv: the projections to queries, keys and values; gate_up: those to gates and to what they multiply.
  void add_layer(const LayerShape& shape, const std::vector<Part>& qkv, const Part& o, const std::vector<Part>& gate_up, const Part& down,
                 Floats qkv_bias, Norms norms) {
    check(shape.rope < (int64_t)ropes_.size(), "a layer with rotation ", shape.rope, " of ", ropes_.size());
    const int64_t queries = shape_.heads * shape_.head_dim, keys = shape_.kv_heads * shape_.head_dim;
    for (const Floats* norm : {&norms.before_attention, &norms.after_attention, &norms.before_feed_forward, &norms.after_feed_forward})
      if (!norm->empty()) check_size(*norm, shape_.hidden, "a norm of a layer");
    if (!qkv_bias.empty()) check_size(qkv_bias, queries + 2 * keys, "the bias of queries, keys and values");
    check(norms.queries.empty() || queries % norms.queries.size() == 0, "a norm of queries divides ", queries, "; given ", norms.queries.size());
    check(norms.keys.empty() || keys % norms.keys.size() == 0, "a norm of keys divides ", keys, "; given ", norms.keys.size());
    layers_.push_back({shape, pack(qkv), pack({o}), pack(gate_up, true), pack({down}), std::move(qkv_bias), std::move(norms)});
  }

  void set_ends(const Part& embedding, const Part* head, Floats norm) {
    check_size(norm, shape_.hidden, "the final norm");
    embedding_ = pack({embedding});
    head_ = head ? pack({*head}) : embedding_;
    norm_ = std::move(norm);
  }

  int64_t weight_bytes() const { return arena_.bytes(); }

  // A pass of a draft head. Its rows start from `features` [T, width] of the target, or from `states` [T, width] of the head. Writes
  // logits, and states of `logit_rows`: what drafted tokens after them start from.
  void draft(const PassInput& input, const bf16* features, const float* states, int64_t width, float* logits, float* states_after) {
    check(fusion_ && !features != !states, "a draft head takes features or states");
    check_width(width, features ? fusion_->fc.depth : shape_.hidden);
    Pass pass = start(input);
    pass.features = const_cast<bf16*>(features);
    pass.given = states;
    pass.states = states_after;
    finish(pass, logits);
  }

  // A pass of a draft head over committed tokens that looks ahead. Writes logits [(1 + n) * L, vocab] of `logit_rows` and of the states
  // ahead, states of `logit_rows` where they are asked for, and of the n levels, one after another, states [n * L, hidden] and what of
  // them meets a token [n * L, width].
  void look_ahead(const PassInput& input, const bf16* features, int64_t width, float* logits, float* states, float* ahead, float* entered) {
    check(levels_.has_value(), "a draft head with levels looks ahead");
    check_width(width, fusion_->fc.depth);
    Pass pass = start(input);
    pass.features = const_cast<bf16*>(features);
    pass.states = states;
    pass.ahead = ahead;
    pass.entered = entered;
    finish(pass, logits);
  }

  // The likeliest of rows of logits (top_k.h).
  void top_k(const float* logits, int64_t rows, int64_t size, int64_t count, int* ids, float* logs) const {
    ::top_k(*team_, logits, rows, size, count, ids, logs);
  }

  // Candidates after drafted tokens (levels.h).
  void follow(const float* ahead, const float* entered, int64_t rows, const int* shortlist, int64_t size, const std::vector<Drafted>& drafted,
              int64_t count, int* ids, float* logs) const {
    check(levels_.has_value(), "a draft head with levels");
    ::follow(*team_, *levels_, norm_, shape_.eps, ahead, entered, rows, shortlist, size, drafted, count, ids, logs);
  }

  // A draft tree for each sequence: `look_ahead`, and the trees grown over it (draft_tree.h). One row of each is in `logit_rows`.
  std::vector<DraftTree> trees(const PassInput& input, const bf16* features, int64_t width, int64_t shortlist, const TreeParams& params,
                               const TreeSpec* specs) {
    check(levels_.has_value(), "a draft head with levels grows trees");
    const int64_t rows = input.num_logit_rows, further = levels_->count * rows, size = (rows + further) * shape_.vocab;
    if (size > logits_size_) logits_ = make_buffer<float>(logits_size_ = size);  // fresh pages of a large vocabulary take milliseconds
    const Buffer<float> ahead = make_buffer<float>(further * shape_.hidden), entered = make_buffer<float>(further * levels_->width);
    look_ahead(input, features, width, logits_.get(), nullptr, ahead.get(), entered.get());
    return grow_trees(*team_, *levels_, norm_, shape_.eps, {logits_.get(), ahead.get(), entered.get(), rows}, shortlist, params, specs);
  }

  // Writes logits [L, vocab]. Also, where `taps` names layers, the hidden states that enter them into features [T, taps * hidden]. The
  // number of layers names what leaves the last one, before the final norm. And each row's argmax, the lowest id among equals.
  void forward(const PassInput& input, float* logits, const std::vector<int64_t>& taps, bf16* features, int64_t* argmax) {
    Pass pass = start(input);
    pass.taps = taps;
    pass.features = features;
    pass.argmax = argmax;
    finish(pass, logits);
  }

 private:
  Decoder(const Shape& shape, std::shared_ptr<Team> team, bool int8) : shape_(shape), team_(team), int8_(int8) {
    check(shape.hidden % 32 == 0 && shape.intermediate % 32 == 0 && shape.head_dim % 32 == 0 && shape.heads % shape.kv_heads == 0,
          "the native forward takes widths that are multiples of 32");
    for (int i = 0; i < team_->size(); i++) attention_.emplace_back(shape.head_dim, shape.heads / shape.kv_heads);
  }

  static void check_size(const Floats& values, int64_t size, const char* name) {
    check((int64_t)values.size() == size, name, " has ", values.size(), " values; allowed: ", size);
  }

  static void check_width(int64_t width, int64_t allowed) {
    check(width == allowed, "a draft head's input is ", width, " wide; allowed: ", allowed);
  }

  static void check_ids(const Matrix& matrix, const int64_t* ids, int64_t count) {
    const int64_t size = matrix.tasks.size() * kTask;
    check(count > 0 && std::all_of(ids, ids + count, [&](int64_t id) { return 0 <= id && id < size; }), "ids are tokens below ", size);
  }

  void unpack(const Matrix& matrix, const int64_t* ids, int64_t count, bf16* to) const {
    check_ids(matrix, ids, count);
    for (int64_t i = 0; i < count; i++) matrix.unpack(ids[i], to + i * shape_.hidden);
  }

  Matrix pack(const std::vector<Part>& parts, bool interleaved = false) {
    for (const Part& part : parts) is_stored_ |= part.format() != Format::kBf16;
    return arena_.pack(*team_, parts, interleaved);
  }

  struct Pass;

  Pass start(const PassInput& input) {
    Pass pass{*this, input.tokens, input.positions, input.logit_rows, input.num_tokens, input.num_logit_rows,
              input.cache, input.page_stride, input.layer_stride};
    for (int64_t s = 0; s < input.num_sequences; s++) {
      const int start = input.starts[s], end = input.starts[s + 1];
      pass.sequences.push_back({start, end - start, input.cached[s], input.pages + s * input.pages_of_each});
      for (int t = start; t < end; t++) pass.sequence_of.push_back(s);
    }
    const int group = shape_.heads / shape_.kv_heads;
    pass.tiles = {make_tiles(pass.sequences, input.parents, group), shape_.kv_heads};
    if (pass.L < pass.T) {
      std::vector<bool> wanted(pass.T);
      for (int64_t i = 0; i < pass.L; i++) wanted[pass.logit_rows[i]] = true;
      pass.wanted_tiles = {make_tiles(pass.sequences, input.parents, group, wanted), shape_.kv_heads};
    }
    return pass;
  }

  void finish(Pass& pass, float* logits) {
    pass.prepare(logits);
    team_->run([&] { pass.run(); });
  }

  struct Pass {
    Decoder& model;
    const int *tokens, *positions, *logit_rows;
    int64_t T;  // rows at work
    const int64_t L;
    bf16* cache;
    const int64_t page_stride, layer_stride;  // elements
    std::vector<Sequence> sequences = {};
    std::vector<int> sequence_of = {};
    Tiles tiles = {};
    Tiles wanted_tiles = {};              // of the tokens that have logits, where not all do
    std::vector<int> narrowed_rows = {};  // `logit_rows` once only these are left
    std::vector<Counter> counters = {};
    Buffers buffers = {};
    std::vector<int64_t> taps = {};
    int64_t* argmax = nullptr;     // of each row of logits, where it is asked for
    bf16* features = nullptr;      // where tapped states go; of a draft head: where they come from
    const float* given = nullptr;  // of a draft head: states of drafted tokens
    float* states = nullptr;       // of a draft head: where its own go
    float *ahead = nullptr, *entered = nullptr;  // of a draft head that looks ahead: where states of its levels go, and what meets a token
    Rows rows = {}, rows_after = {};  // input of the linear at work, and of the next one
    float *hidden = nullptr, *qkv = nullptr, *logits = nullptr;
    float* added = nullptr;  // what a sublayer adds to the hidden state, before its norm
    bf16 *x = nullptr, *fused = nullptr, *queries = nullptr, *attention = nullptr, *activation = nullptr;

    int64_t num_logits() const { return ahead ? (1 + model.levels_->count) * L : L; }

    void prepare(float* out) {
      const Shape& s = model.shape_;
      const int64_t wide = (s.heads + 2 * s.kv_heads) * s.head_dim;
      buffers.hidden = make_buffer<float>(T * s.hidden);
      const auto norms_after = [](const Layer& layer) { return !layer.norms.after_attention.empty() || !layer.norms.after_feed_forward.empty(); };
      if (std::any_of(model.layers_.begin(), model.layers_.end(), norms_after)) buffers.added = make_buffer<float>(T * s.hidden);
      buffers.qkv = make_buffer<float>(T * std::max(wide, s.hidden));  // later takes what `narrow` keeps of `hidden`
      buffers.x = make_buffer<bf16>(std::max((model.fusion_ ? 2 : 1) * T, num_logits()) * s.hidden);
      buffers.attention = make_buffer<bf16>(2 * T * s.heads * s.head_dim);
      buffers.activation = make_buffer<bf16>(T * s.intermediate);
      if (ahead) buffers.raised = make_buffer<bf16>(model.levels_->count * L * model.levels_->width);
      if (model.fusion_ && !given) buffers.fused = make_buffer<bf16>(T * model.fusion_->fc.depth);
      fused = buffers.fused.get();
      if (model.int8_ && model.is_stored_) {
        const int64_t before = std::max({fused ? model.fusion_->fc.depth : 0, (model.fusion_ ? 2 : 1) * s.hidden, s.heads * s.head_dim});
        const int64_t groups = std::max(before * T, s.hidden * num_logits()) / stored::kGroup, after = s.intermediate * T / stored::kGroup;
        buffers.groups = make_buffer<stored::RowGroup>(groups + after);
        rows.groups = buffers.groups.get();
        rows_after.groups = rows.groups + groups;
        const int64_t supers = groups / stored::kSuperGroups + 1, all = supers + after / stored::kSuperGroups + 1 + stored::kMostTileRows;
        buffers.supers = make_buffer<stored::RowSuper>(all);
        rows.supers = buffers.supers.get();
        rows_after.supers = rows.supers + supers;
      }
      hidden = buffers.hidden.get();
      added = buffers.added.get();
      qkv = buffers.qkv.get();
      x = buffers.x.get();
      queries = buffers.attention.get();
      attention = queries + T * s.heads * s.head_dim;
      activation = buffers.activation.get();
      logits = out;
      counters = std::vector<Counter>((14 * model.layers_.size() + 8 + (ahead ? model.levels_->count + 3 : 0)) * model.team_->size());
    }

    // Calls task(0 .. count-1), each on one thread, and waits for all of them. Each thread works through a range of its own,
    // so that it reads memory in one stream, then helps with what is left of the others' ranges.
    // Done with that, a thread fetches its first task of the linear `next` while it waits for the others.
    template <class Task>
    void share(int& phase, int64_t count, const Task& task, const Matrix* next = nullptr) {
      const int n = model.team_->size(), me = Team::me;
      for (int i = 0; i < n; i++) {
        const int owner = (me + i) % n;
        auto& taken = counters[phase * n + owner].next;
        const auto [begin, end] = model.team_->part(count, owner);
        for (int64_t t; (t = begin + taken.fetch_add(1, std::memory_order_relaxed)) < end;) task(t);
      }
      if (next) {
        const Matrix::Task& first = next->tasks[model.team_->part(next->tasks.size()).first];
        fetch(first.data, first.bytes);
      }
      phase++;
      model.team_->barrier();
    }

    // Shares the columns of input [M, K] times packed weights, from task `begin` on; epilogue(first_row, rows, task, c[rows][32]). One
    // thread takes `together` tasks, then calls after(the number of them).
    template <class Epilogue, class After = decltype([](int64_t) {})>
    void linear(int& phase, const Input& input, int64_t M, const Matrix& weights, const Epilogue& epilogue, int64_t begin = 0,
                int64_t together = 1, const After& after = {}) {
      if (M == 0) return;
      alignas(64) float c[32 * kTask];
      const int64_t K = weights.depth;
      const stored::Sweeps sweeps{M, K / stored::kGroup};
      share(phase, (weights.tasks.size() - begin) / together, [&](int64_t unit) {
        for (int64_t i = begin + unit * together; i < begin + (unit + 1) * together; i++) {
          const Matrix::Task& task = weights.tasks[i];
          const auto done = [&](int64_t first, int count, const float* sums) { epilogue(first, count, i, sums); };
          if (input.rows.groups && stored::is_nested(task.format))
            stored::task_product(task.format, input.rows.supers, M, K / stored::kGroup, task.data, done);
          else if (input.rows.groups && task.format != Format::kBf16)
            stored::task_product(task.format, input.rows.groups, sweeps, task.data, task.bytes, c, done);
          else
            task_product(input.x, K, M, expanded(task, K), K, c, done);
        }
        after(unit);
      });
    }

    // Brings columns [first, first + count) of row t of `input` [M, K] to 8 bits in groups, where products take them so.
    void quantise(const Input& input, int64_t M, int64_t K, int64_t t, int64_t first, int64_t count) {
      if (!input.rows.groups) return;
      const auto [at, stride] = stored::Sweeps{M, K / stored::kGroup}.place(t);
      stored::quantise(input.x + t * K + first, count, stride, input.rows.groups + at + first / stored::kGroup * stride);
    }

    // Brings all of row t of `input` [M, K] to 8 bits in the ways that `next` takes.
    void quantise(const Input& input, int64_t M, const Matrix& next, int64_t t) {
      const int64_t K = next.depth;
      if (next.takes_groups) quantise(input, M, K, t, 0, K);
      if (next.takes_supers && input.rows.supers) stored::quantise(input.x + t * K, K, M, input.rows.supers + t);
    }

    // Brings the rows of `input` to 8 bits in supers, which parts of a row cannot be, where `next` takes them so.
    void quantise_supers(int& phase, const Input& input, const Matrix& next) {
      if (!next.takes_supers || !input.rows.supers) return;
      share(phase, T, [&](int64_t t) { stored::quantise(input.x + t * next.depth, next.depth, T, input.rows.supers + t); }, &next);
    }

    // The weights of a task in bf16: the task's own, or expanded into memory of this thread.
    const bf16* expanded(const Matrix::Task& task, int64_t K) {
      if (task.format == Format::kBf16) return reinterpret_cast<const bf16*>(task.data);
      auto& memory = model.expanded_[Team::me];
      if ((int64_t)memory.size() < kTask * K) memory.resize(kTask * K);
      for (int b = 0; b < 2; b++)
        stored::expand_block(task.format, task.data + b * (task.bytes / 2), K / stored::kGroup, memory.data() + b * kBlock * K);
      return memory.data();
    }

    // x = norm(hidden), or hidden itself without a norm. `layer`: whose input this is; -1 for one that cannot be tapped.
    void normalise(int& phase, const Floats& weight, const Matrix& next, int64_t layer = -1) {
      const Shape& s = model.shape_;
      const auto task = [&](int64_t t) {
        tap(layer, t);
        if (!weight.empty())
          rms_norm(hidden + t * s.hidden, weight.data(), s.eps, s.hidden, x + t * s.hidden);
        else
          store_hidden(t, x + t * s.hidden);
        quantise({x, rows}, T, next, t);
      };
      share(phase, T, task, &next);
    }

    // Writes the hidden state of token t, which enters `layer`, to the features if that layer is tapped.
    void tap(int64_t layer, int64_t t) {
      const int64_t width = model.shape_.hidden;
      for (size_t i = 0; i < taps.size(); i++) {
        if (taps[i] != layer) continue;
        store_hidden(t, features + (t * taps.size() + i) * width);
      }
    }

    // Writes the hidden state of token t, rounded.
    void store_hidden(int64_t t, bf16* to) {
      const int64_t width = model.shape_.hidden;
      for (int64_t k = 0; k < width; k += 16) lanes::store_bf16(to + k, lanes::load(hidden + t * width + k));
    }

    // hidden += factor * norm(input times weights), or without a norm.
    void add_to_hidden(int& phase, const Input& input, const Matrix& weights, float factor, const Floats& norm) {
      const int64_t width = model.shape_.hidden;
      const Lanes scale = lanes::all(factor);
      linear(phase, input, T, weights, [&](int64_t first, int rows, int64_t task, const float* c) {
        for (int r = 0; r < rows; r++) {
          const int64_t to = (first + r) * width + task * kTask;
          fetch_to_write((norm.empty() ? hidden : added) + to + rows * width);  // of the next sweep
          if (!norm.empty())
            std::copy_n(c + r * kTask, kTask, added + to);
          else
            for (int h = 0; h < kTask; h += 16)
              lanes::store(hidden + to + h, lanes::fma(lanes::load(c + r * kTask + h), scale, lanes::load(hidden + to + h)));
        }
      });
      if (!norm.empty())
        share(phase, T, [&](int64_t t) {
          add_rms_norm(added + t * width, norm.data(), model.shape_.eps, factor, width, hidden + t * width);
        });
    }

    void embed(int& phase) {
      const int64_t width = model.shape_.hidden;
      const Lanes scale = lanes::all(model.shape_.embedding_scale);
      share(phase, T, [&](int64_t t) {
        model.embedding_.unpack(tokens[t], x + t * width);
        for (int64_t k = 0; k < width; k += 16) lanes::store(hidden + t * width + k, lanes::mul(lanes::load(x + t * width + k), scale));
      });
    }

    // hidden = g of a draft head's tokens.
    void start_head(int& phase, const Fusion& fusion) {
      const int64_t width = model.shape_.hidden;
      if (given) {
        share(phase, T, [&](int64_t t) { std::copy_n(given + t * width, width, hidden + t * width); });
        return;
      }
      const int64_t depth = fusion.fc.depth;
      const Floats& norm = fusion.features_norm;
      const Input input{!norm.empty() ? fused : features, rows};
      share(phase, T, [&](int64_t t) {
        if (!norm.empty()) rms_norm(features + t * depth, norm.data(), model.shape_.eps, depth, fused + t * depth);
        quantise(input, T, fusion.fc, t);
      });
      linear(phase, input, T, fusion.fc, [&](int64_t first, int rows, int64_t task, const float* c) {
        for (int r = 0; r < rows; r++) std::copy_n(c + r * kTask, kTask, hidden + (first + r) * width + task * kTask);
      });
    }

    // x = [norm(embedding), norm(g)].
    void pair(int& phase, const Fusion& fusion, const Matrix& next) {
      const Shape& s = model.shape_;
      const auto task = [&](int64_t t) {
        float* g = hidden + t * s.hidden;
        bf16* to = x + t * 2 * s.hidden;
        fusion.embedding.unpack(tokens[t], to);
        rms_norm(to, fusion.embedding_norm.data(), s.eps, s.hidden, to);
        rms_norm(g, fusion.state_norm.data(), s.eps, s.hidden, to + s.hidden);
        if (fusion.norm_before_residual)
          for (int64_t k = 0; k < s.hidden; k += 16) lanes::store(g + k, lanes::load(to + s.hidden + k));
        quantise({x, rows}, T, next, t);
      };
      share(phase, T, task, &next);
    }

    void project(int& phase, const Layer& layer, bool with_queries) {
      const Shape& s = model.shape_;
      const int64_t begin = with_queries ? 0 : s.heads * s.head_dim / kTask;
      const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
      const float* bias = layer.qkv_bias.empty() ? nullptr : layer.qkv_bias.data();
      linear(phase, {x, rows}, T, layer.qkv, [&](int64_t first, int rows, int64_t task, const float* c) {
        for (int r = 0; r < rows; r++)
          for (int h = 0; h < kTask; h += 16) {
            Lanes sum = lanes::load(c + r * kTask + h);
            if (bias) sum = lanes::add(sum, lanes::load(bias + task * kTask + h));
            lanes::store(qkv + (first + r) * width + task * kTask + h, sum);
          }
      }, begin);
    }

    // Norms `size` entries of a token's heads, in groups of the weight's size.
    void norm_heads(float* heads, int64_t size, const Floats& weight) {
      if (weight.empty()) return;
      const int64_t group = weight.size();
      for (int64_t i = 0; i < size; i += group) rms_norm(heads + i, weight.data(), (float)model.shape_.eps, group);
    }

    // Norms and rotates queries and keys of one token and writes its K/V into its slot.
    void place(const Layer& layer, int64_t t, bf16* pages, bool with_queries) {
      const Shape& s = model.shape_;
      const int64_t d = s.head_dim, first = with_queries ? 0 : s.heads;
      float* row = qkv + t * (s.heads + 2 * s.kv_heads) * d;
      if (with_queries) norm_heads(row, s.heads * d, layer.norms.queries);
      norm_heads(row + s.heads * d, s.kv_heads * d, layer.norms.keys);
      if (layer.shape.rope >= 0) {
        const Rope& rope = *model.ropes_[layer.shape.rope];
        const int64_t half = rope.half, angles = positions[t] * half;
        for (int64_t h = first; h < s.heads + s.kv_heads; h++)
          rotate(row + h * d, half, rope.cosine.data() + angles, rope.sine.data() + angles);
      }
      for (int64_t h = first; h < s.heads; h++)
        for (int64_t i = 0; i < d; i += 16) lanes::store_bf16(queries + (t * s.heads + h) * d + i, lanes::load(row + h * d + i));
      const Sequence& sequence = sequences[sequence_of[t]];
      const int slot = sequence.cached + t - sequence.start;
      const PageLayout layout{d};
      for (int64_t h = 0; h < s.kv_heads; h++) {
        float *key = row + (s.heads + h) * d, *value = row + (s.heads + s.kv_heads + h) * d;
        write_slot(layout, pages + sequence.pages[slot / kPage] * page_stride + h * layout.size(), slot % kPage, key, value);
      }
    }

    void attend(int& phase, const Layer& layer, const Tiles& tiles, const bf16* pages) {
      const Shape& s = model.shape_;
      const PageLayout layout{s.head_dim};
      const auto task = [&](int64_t i) {
        const auto [number, h] = tiles.order[i];
        const Tile& tile = tiles.all[number];
        model.attention_[Team::me].run(tile, sequences[tile.sequence], positions, queries, s.heads, h, pages + h * layout.size(), page_stride,
                                       layer.shape.scoring, attention);
        for (int r = tile.first, group = s.heads / s.kv_heads; r < tile.first + tile.rows; r++)
          if (layer.o.takes_groups)
            quantise({attention, rows}, T, s.heads * s.head_dim, tile.tokens[r / group], (h * group + r % group) * s.head_dim, s.head_dim);
      };
      share(phase, tiles.order.size(), task, &layer.o);
    }

    // Leaves the rows of tokens without logits out of the rest of the last layer: what they are for, its keys and values, is written.
    void narrow(int& phase, const Matrix& next) {
      const int64_t width = model.shape_.hidden, heads = model.shape_.heads * model.shape_.head_dim;
      share(phase, L, [&](int64_t i) {
        std::copy_n(hidden + logit_rows[i] * width, width, qkv + i * width);
        std::copy_n(attention + logit_rows[i] * heads, heads, queries + i * heads);
        quantise({queries, rows}, L, next, i);
      });
      if (Team::me == 0) {
        for (int64_t i = 0; i < L; i++) narrowed_rows.push_back(i);
        logit_rows = narrowed_rows.data();
        hidden = qkv;
        attention = queries;
        T = L;
      }
      model.team_->barrier();
    }

    void feed_forward(int& phase, const Layer& layer) {
      const Shape& s = model.shape_;
      const Input input{activation, rows_after};
      constexpr int64_t kPair = 2;  // tasks: they make a group of 32 activations
      linear(
          phase, {x, rows}, T, layer.gate_up,
          [&](int64_t first, int rows, int64_t task, const float* c) {
            for (int r = 0; r < rows; r++) {
              const Lanes gate = lanes::load(c + r * kTask), up = lanes::load(c + r * kTask + 16);
              lanes::store_bf16(activation + (first + r) * s.intermediate + task * 16, lanes::mul(layer.shape.gelu ? gelu(gate) : silu(gate), up));
            }
          },
          0, kPair,
          [&](int64_t pair) {
            for (int64_t t = 0; layer.down.takes_groups && t < T; t++)
              quantise(input, T, s.intermediate, t, pair * stored::kGroup, stored::kGroup);
          });
      quantise_supers(phase, input, layer.down);
      add_to_hidden(phase, input, layer.down, layer.shape.residual_scale, layer.norms.after_feed_forward);
    }

    // Follows x of the L logit rows with that of the levels' states.
    void look_ahead(int& phase, const Levels& levels) {
      const int64_t width = model.shape_.hidden, inner = levels.width, rows = levels.count * L;
      bf16* raised = buffers.raised.get();
      linear(phase, {x, {}}, L, levels.enter, [&](int64_t first, int count, int64_t task, const float* c) {
        const int64_t level = task * kTask / inner, column = task * kTask % inner;
        for (int r = 0; r < count; r++)
          for (int h = 0; h < kTask; h += 16)
            lanes::store_bf16(raised + (level * L + first + r) * inner + column + h, silu(lanes::load(c + r * kTask + h)));
      });
      for (int64_t level = 0; level < levels.count; level++)
        linear(phase, {raised + level * L * inner, {}}, L, levels.leave[level], [&](int64_t first, int count, int64_t task, const float* c) {
          for (int r = 0; r < count; r++)
            for (int h = 0; h < kTask; h += 16) {
              const Lanes before = lanes::load(hidden + logit_rows[first + r] * width + task * kTask + h);
              lanes::store(ahead + (level * L + first + r) * width + task * kTask + h, lanes::add(before, lanes::load(c + r * kTask + h)));
            }
        });
      share(phase, rows, [&](int64_t i) {
        rms_norm(ahead + i * width, model.norm_.data(), model.shape_.eps, width, x + (L + i) * width);
        quantise({x, this->rows}, L + rows, model.head_, L + i);
      });
      linear(phase, {x + L * width, {}}, rows, levels.state, [&](int64_t first, int count, int64_t task, const float* c) {
        for (int r = 0; r < count; r++) std::copy_n(c + r * kTask, kTask, entered + (first + r) * inner + task * kTask);
      });
    }

    // Scales and caps 32 logits.
    [[gnu::noinline]] void scale_logits(const float* sums, float* to) const {
      const Shape& s = model.shape_;
      for (int h = 0; h < kTask; h += 16) {
        const Lanes x = lanes::mul(lanes::load(sums + h), lanes::all(s.logit_scale));
        lanes::store(to + h, s.logit_cap > 0 ? soft_cap(x, s.logit_cap) : x);
      }
    }

    void finish(int& phase) {
      const Shape& s = model.shape_;
      share(phase, L, [&](int64_t i) {
        const float* state = hidden + logit_rows[i] * s.hidden;
        rms_norm(state, model.norm_.data(), s.eps, s.hidden, x + i * s.hidden);
        quantise({x, rows}, num_logits(), model.head_, i);
        if (!states) return;
        for (int64_t k = 0; k < s.hidden; k += 16)
          lanes::store(states + i * s.hidden + k,
                       model.fusion_->norm_output ? lanes::load(x + i * s.hidden + k) : lanes::load(state + k));
      });
      if (ahead) look_ahead(phase, *model.levels_);
      const bool plain = s.logit_scale == 1.0f && s.logit_cap == 0.0f;
      linear(phase, {x, rows}, num_logits(), model.head_, [&, plain](int64_t first, int rows, int64_t task, const float* c) {
        const int64_t columns = std::min<int64_t>(kTask, s.vocab - task * kTask);
        alignas(64) float scaled[kTask];
        for (int r = 0; r < rows; r++) {
          const float* from = c + r * kTask;
          float* to = logits + (first + r) * s.vocab + task * kTask;
          if (!plain) scale_logits(from, scaled), from = scaled;
          if (columns == kTask)
            for (int h = 0; h < kTask; h += 16) lanes::store(to + h, lanes::load(from + h));
          else
            for (int64_t h = 0; h < columns; h++) to[h] = from[h];
        }
      });
      if (!argmax) return;  // the rows are in cache: these threads have just written them
      share(phase, L, [&](int64_t i) {
        const float* row = logits + i * s.vocab;
        argmax[i] = scan::first_of(row, s.vocab, scan::max_of(row, s.vocab));
      });
    }

    void run() {
      int phase = 0;
      const int64_t last = model.layers_.size() - 1;
      const bool taps_end = std::find(taps.begin(), taps.end(), last + 1) != taps.end();
      const bool narrows = L < T && !taps_end;
      if (model.fusion_)
        start_head(phase, *model.fusion_);
      else
        embed(phase);
      for (int64_t l = 0; l <= last; l++) {
        const Layer& layer = model.layers_[l];
        bf16* pages = cache + l * layer_stride;
        const bool narrow_here = narrows && l == last, with_queries = !narrow_here || L > 0;
        if (model.fusion_)
          pair(phase, *model.fusion_, layer.qkv);
        else
          normalise(phase, layer.norms.before_attention, layer.qkv, l);
        project(phase, layer, with_queries);
        share(phase, T, [&](int64_t t) { place(layer, t, pages, with_queries); });
        if (!with_queries) break;  // a pass for keys and values only
        attend(phase, layer, narrow_here ? wanted_tiles : tiles, pages);
        if (narrow_here)
          narrow(phase, layer.o);
        else
          quantise_supers(phase, {attention, rows}, layer.o);
        add_to_hidden(phase, {attention, rows}, layer.o, layer.shape.residual_scale, layer.norms.after_attention);
        normalise(phase, layer.norms.before_feed_forward, layer.gate_up);
        feed_forward(phase, layer);
      }
      if (taps_end) share(phase, T, [&](int64_t t) { tap(last + 1, t); });
      finish(phase);
#ifdef PROLEPSIS_AMX
      amx::release();
#endif
    }
  };

  const Shape shape_;
  const std::shared_ptr<Team> team_;
  const bool int8_;
  bool is_stored_ = false;  // whether any weights are in less than bf16
  std::vector<TileAttention> attention_;
  std::vector<std::vector<bf16>> expanded_ = std::vector<std::vector<bf16>>(team_->size());
  Arena arena_;
  std::vector<std::shared_ptr<const Rope>> ropes_;  // a draft head has its target's
  std::vector<Layer> layers_;
  Matrix embedding_, head_;
  Floats norm_;
  Buffer<float> logits_;  // of the last trees
  int64_t logits_size_ = 0;
  std::optional<Fusion> fusion_;
  std::optional<Levels> levels_;
};
