// One pass of a decoder over a flat batch, for any number of rows, on weights packed once.
//
// A pass is one job of a small thread team. Threads take tasks (32 columns of a linear, one tile and KV head of attention, one
// token of the rest) from a shared counter, so a thread that loses its core for a while does not delay the others. Which thread
// computes a task does not change its bits. The residual stream and all sums are float32; inputs of products are bf16.
//
// A draft head is such a decoder of one layer. It starts from the target's hidden states, or from its own of the draft so far,
// and also takes each token's embedding (EAGLE-3, arXiv 2503.01840).
#pragma once
#include <torch/extension.h>

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

struct Norms {  // of a layer; those that it lacks are missing
  std::optional<Tensor> before_attention, after_attention, before_feed_forward, after_feed_forward;
  std::optional<Tensor> queries, keys;  // [head_dim], or [heads * head_dim] for all heads of a token at once
};

struct Layer {
  LayerShape shape;
  Matrix qkv, o, gate_up, down;
  std::optional<Tensor> qkv_bias;
  Norms norms;
};

// A rotary embedding: cosine and sine [positions, half] of the angles of pairs (i, i + half) of a head.
struct Rope {
  Tensor cosine, sine;
  int64_t half() const { return cosine.size(1); }
};

// How a draft head enters its layer: x = [norm(embedding of the token), norm(g)], residual g. For the target's hidden states
// g = fc(norm(features)), without that norm where `features_norm` is missing; for drafted tokens g is the head's own output.
struct Fusion {
  Matrix embedding, fc;
  Tensor embedding_norm, state_norm;
  std::optional<Tensor> features_norm;
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
  Tensor hidden, added, x, qkv, attention, activation, fused, raised, groups, supers;
};

class Decoder {
 public:
  // `int8`: products with stored weights take rows in 8 bits; otherwise these weights are expanded to bf16 task by task.
  Decoder(const Shape& shape, int threads, bool int8) : Decoder(shape, std::make_shared<Team>(threads, std::chrono::milliseconds(4)), int8) {}

  std::shared_ptr<Team> team() const { return team_; }

  // Returns a draft head without weights yet, for this target: same rotation, embedding and threads, one layer of `kv_heads` and
  // `heads` heads, `vocab` tokens.
  std::unique_ptr<Decoder> make_head(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t intermediate, int64_t vocab,
                                     double eps, bool int8) const {
    const int64_t hidden = shape_.hidden;
    std::unique_ptr<Decoder> head(new Decoder({hidden, heads, kv_heads, head_dim, intermediate, vocab, eps}, team_, int8));
    head->ropes_ = ropes_;
    head->fusion_.emplace();
    head->fusion_->embedding = embedding_;
    return head;
  }

  // Returns the first `layers` layers with this target's final norm and the first `vocab` rows of its output: a decoder of its own on
  // the same weights and threads, for the same cache (early exit, LayerSkip, arXiv 2404.16710).
  std::unique_ptr<Decoder> make_exit(int64_t layers, int64_t vocab) const {
    TORCH_CHECK(!fusion_ && 0 < layers && layers <= (int64_t)layers_.size(), "an exit after ", layers, " layers; allowed: 1 to ", layers_.size());
    TORCH_CHECK(0 < vocab && vocab <= shape_.vocab && vocab % kTask == 0, "an exit has a multiple of ", kTask, " tokens; given ", vocab);
    Shape shape = shape_;
    shape.vocab = vocab;
    std::unique_ptr<Decoder> early(new Decoder(shape, team_, int8_));
    early->ropes_ = ropes_;
    early->layers_.assign(layers_.begin(), layers_.begin() + layers);
    early->embedding_ = embedding_;
    early->head_ = head_.first(vocab);
    early->norm_ = norm_;
    early->is_stored_ = is_stored_;
    return early;
  }

  void set_fusion(Part fc, Tensor embedding_norm, Tensor state_norm, std::optional<Tensor> features_norm, bool norm_before_residual,
                  bool norm_output) {
    TORCH_CHECK(fusion_, "only a draft head fuses");
    *fusion_ = {fusion_->embedding, pack({fc}), embedding_norm, state_norm, features_norm, norm_before_residual, norm_output};
  }

  void set_output(Part head, Tensor norm) {
    head_ = pack({head});
    norm_ = norm;
  }

  // Takes some rows of the target's output, as they are packed there, for a draft head's.
  void take_output(const Decoder& target, Tensor ids, Tensor norm) {
    is_stored_ |= target.head_.tasks[0].format != Format::kBf16;
    head_ = arena_.gather(target.head_, target.checked(ids), ids.size(0));
    norm_ = norm;
  }

  // Some rows of the output [ids, hidden] in bf16.
  Tensor output_rows(Tensor ids) const {
    const int64_t* rows = checked(ids);
    Tensor found = at::empty({ids.size(0), shape_.hidden}, at::kBFloat16);
    for (int64_t i = 0; i < ids.size(0); i++) head_.unpack(rows[i], bits(found) + i * shape_.hidden);
    return found;
  }

  // Gives a draft head its levels: enter [n, width, hidden], leave [n, hidden, width], state and token [width, hidden], out [hidden,
  // width] and the output head [vocab, hidden], all bf16; `target_ids` [vocab] are its tokens.
  void set_levels(Tensor enter, Tensor leave, Tensor state, Tensor token, Tensor out, Tensor head, Tensor target_ids) {
    TORCH_CHECK(fusion_ && enter.size(1) % kTask == 0, "levels of a draft head, a multiple of ", kTask, " wide");
    const int64_t hidden = shape_.hidden;
    Tensor embeddings = at::empty({target_ids.size(0), hidden}, at::kBFloat16);
    for (int64_t i = 0; i < target_ids.size(0); i++)
      fusion_->embedding.unpack(target_ids.data_ptr<int64_t>()[i], bits(embeddings) + i * hidden);
    const Tensor wide = embeddings.to(at::kFloat);
    const Tensor normed = wide * at::rsqrt(wide.square().mean(-1, true) + shape_.eps);
    const auto packed = [&](const Tensor& weight) { return pack({{weight.contiguous(), static_cast<int>(Format::kBf16)}}); };
    const auto copied = [](const Tensor& weight) { return weight.clone(at::MemoryFormat::Contiguous); };  // a view keeps a mapped file in memory
    levels_ = Levels{enter.size(0), enter.size(1), packed(enter.flatten(0, 1)), packed(state), {}, copied(out), copied(head),
                     at::matmul(normed, token.to(at::kFloat).t()).to(at::kBFloat16).contiguous(), target_ids.contiguous()};
    for (int64_t i = 0; i < levels_->count; i++) levels_->leave.push_back(packed(leave[i]));
  }

  // Adds a rotation, float32 [positions, half] both, which layers name by its number.
  void add_rope(Tensor cosine, Tensor sine) {
    TORCH_CHECK(cosine.is_contiguous() && sine.is_contiguous() && cosine.sizes() == sine.sizes() && cosine.size(1) % 16 == 0 &&
                    2 * cosine.size(1) <= shape_.head_dim,
                "a rotation is [positions, half], half a multiple of 16, at most half a head; given ", cosine.sizes(), " and ", sine.sizes());
    ropes_.push_back({cosine, sine});
  }

  // qkv: the projections to queries, keys and values; gate_up: those to gates and to what they multiply.
  void add_layer(const LayerShape& shape, const std::vector<Part>& qkv, Part o, const std::vector<Part>& gate_up, Part down,
                 std::optional<Tensor> qkv_bias, const Norms& norms) {
    TORCH_CHECK(shape.rope < (int64_t)ropes_.size(), "a layer with rotation ", shape.rope, " of ", ropes_.size());
    layers_.push_back({shape, pack(qkv), pack({o}), pack(gate_up, true), pack({down}), qkv_bias, norms});
  }

  void set_ends(Part embedding, std::optional<Part> head, Tensor norm) {
    embedding_ = pack({embedding});
    head_ = head ? pack({*head}) : embedding_;
    norm_ = norm;
  }

  int64_t weight_bytes() const { return arena_.bytes(); }

  // A pass of a draft head. Its rows start from `features` [T, taps * hidden] bf16 of the target, or from `states` [T, hidden] float32
  // of the head. Returns logits and states of `logit_rows`: what drafted tokens after them start from.
  std::pair<Tensor, Tensor> draft(Tensor tokens, Tensor positions, Tensor parents, Tensor starts, Tensor cached, Tensor pages,
                                  Tensor logit_rows, Tensor cache, std::optional<Tensor> features, std::optional<Tensor> states) {
    const int64_t T = tokens.size(0);
    TORCH_CHECK(fusion_ && features.has_value() != states.has_value(), "a draft head takes features or states");
    const int64_t width = features ? fusion_->fc.depth : shape_.hidden;
    const Tensor& given = features ? *features : *states;
    TORCH_CHECK(given.sizes() == at::IntArrayRef({T, width}) && given.is_contiguous() &&
                    given.scalar_type() == (features ? at::kBFloat16 : at::kFloat),
                "given are ", given.sizes(), " ", given.scalar_type(), " for ", T, " tokens; allowed: bf16 features or float32 states");
    Pass pass = start(tokens, positions, parents, starts, cached, pages, logit_rows, cache);
    pass.features = features ? bits(*features) : nullptr;
    pass.given = states ? states->data_ptr<float>() : nullptr;
    Tensor out = at::empty({logit_rows.size(0), shape_.hidden}, at::kFloat);
    pass.states = out.data_ptr<float>();
    return {finish(pass), out};
  }

  // A pass of a draft head over committed tokens that looks ahead. Returns logits [(1 + n) * L, vocab] of `logit_rows` and of the states
  // ahead, states of `logit_rows`, and of the n levels, one after another, states [n * L, hidden] and what of them meets a token
  // [n * L, width].
  std::tuple<Tensor, Tensor, Tensor, Tensor> look_ahead(Tensor tokens, Tensor positions, Tensor parents, Tensor starts, Tensor cached,
                                                         Tensor pages, Tensor logit_rows, Tensor cache, Tensor features) {
    TORCH_CHECK(levels_ && features.sizes() == at::IntArrayRef({tokens.size(0), fusion_->fc.depth}) && features.is_contiguous() &&
                    features.scalar_type() == at::kBFloat16,
                "a draft head with levels takes bf16 features; given ", features.sizes());
    Pass pass = start(tokens, positions, parents, starts, cached, pages, logit_rows, cache);
    pass.features = bits(features);
    const int64_t L = logit_rows.size(0), rows = levels_->count * L;
    Tensor out = at::empty({L, shape_.hidden}, at::kFloat), ahead = at::empty({rows, shape_.hidden}, at::kFloat);
    Tensor entered = at::empty({rows, levels_->width}, at::kFloat);
    pass.states = out.data_ptr<float>();
    pass.ahead = ahead.data_ptr<float>();
    pass.entered = entered.data_ptr<float>();
    return {finish(pass), out, ahead, entered};
  }

  // The likeliest of rows of logits (top_k.h).
  std::pair<Tensor, Tensor> top_k(Tensor logits, int64_t count) const { return ::top_k(*team_, logits, count); }

  // Candidates after drafted tokens (levels.h).
  std::pair<Tensor, Tensor> follow(Tensor ahead, Tensor entered, Tensor shortlist, const std::vector<std::pair<int64_t, int64_t>>& drafted,
                                   int64_t count) const {
    TORCH_CHECK(levels_, "a draft head with levels");
    return ::follow(*team_, *levels_, norm_, shape_.eps, ahead, entered, shortlist, drafted, count);
  }

  // A draft tree for each sequence: `look_ahead`, and the trees grown over it (draft_tree.h). One row of each is in `logit_rows`.
  std::vector<DraftTree> trees(Tensor tokens, Tensor positions, Tensor parents, Tensor starts, Tensor cached, Tensor pages,
                               Tensor logit_rows, Tensor cache, Tensor features, int64_t shortlist, const TreeParams& params,
                               const std::vector<TreeSpec>& specs) {
    TORCH_CHECK(static_cast<int64_t>(specs.size()) == logit_rows.size(0), specs.size(), " specs for ", logit_rows.size(0), " rows");
    const auto [logits, states, ahead, entered] = look_ahead(tokens, positions, parents, starts, cached, pages, logit_rows, cache, features);
    return grow_trees(*team_, *levels_, norm_, shape_.eps, logits, ahead, entered, shortlist, params, specs);
  }

  // Also writes, where `taps` names layers, the hidden states that enter them into features [T, taps * hidden] (bf16). The number
  // of layers names what leaves the last one, before the final norm. Also returned: each row's argmax, the lowest id among equals.
  std::pair<Tensor, std::vector<int64_t>> forward(Tensor tokens, Tensor positions, Tensor parents, Tensor starts, Tensor cached,
                                                  Tensor pages, Tensor logit_rows, Tensor cache, const std::vector<int64_t>& taps,
                                                  std::optional<Tensor> features) {
    const int64_t T = tokens.size(0), width = taps.size() * shape_.hidden;
    TORCH_CHECK(taps.empty() || (features && features->sizes() == at::IntArrayRef({T, width}) && features->is_contiguous() &&
                                 features->scalar_type() == at::kBFloat16),
                "features are [tokens, taps * hidden] bf16");
    Pass pass = start(tokens, positions, parents, starts, cached, pages, logit_rows, cache);
    pass.taps = taps;
    pass.features = features ? bits(*features) : nullptr;
    std::vector<int64_t> argmax(logit_rows.size(0));
    pass.argmax = argmax.data();
    Tensor logits = finish(pass);
    return {logits, std::move(argmax)};
  }

 private:
  Decoder(const Shape& shape, std::shared_ptr<Team> team, bool int8) : shape_(shape), team_(team), int8_(int8) {
    TORCH_CHECK(shape.hidden % 32 == 0 && shape.intermediate % 32 == 0 && shape.head_dim % 32 == 0 && shape.heads % shape.kv_heads == 0,
                "the native forward takes widths that are multiples of 32");
    for (int i = 0; i < team_->size(); i++) attention_.emplace_back(shape.head_dim, shape.heads / shape.kv_heads);
  }

  // Token ids [n] int64 that the output has.
  const int64_t* checked(const Tensor& ids) const {
    TORCH_CHECK(ids.scalar_type() == at::kLong && ids.is_contiguous() && ids.numel() && at::min(ids).item<int64_t>() >= 0 &&
                    at::max(ids).item<int64_t>() < shape_.vocab,
                "ids are int64 tokens below ", shape_.vocab);
    return ids.data_ptr<int64_t>();
  }

  Matrix pack(const std::vector<Part>& parts, bool interleaved = false) {
    for (const Part& part : parts) is_stored_ |= format_of(part) != Format::kBf16;
    return arena_.pack(parts, interleaved);
  }

  struct Pass;

  Pass start(const Tensor& tokens, const Tensor& positions, const Tensor& parents, const Tensor& starts, const Tensor& cached,
             const Tensor& pages, const Tensor& logit_rows, const Tensor& cache) {
    Pass pass{*this, tokens.data_ptr<int>(), positions.data_ptr<int>(), logit_rows.data_ptr<int>(), tokens.size(0), logit_rows.size(0),
              bits(cache), cache.stride(1), cache.stride(0)};
    for (int64_t s = 0; s < cached.size(0); s++) {
      const int start = starts.data_ptr<int>()[s], end = starts.data_ptr<int>()[s + 1];
      pass.sequences.push_back({start, end - start, cached.data_ptr<int>()[s], pages.data_ptr<int>() + s * pages.size(1)});
      for (int t = start; t < end; t++) pass.sequence_of.push_back(s);
    }
    const int group = shape_.heads / shape_.kv_heads;
    pass.tiles = {make_tiles(pass.sequences, parents.data_ptr<int>(), group), shape_.kv_heads};
    if (pass.L < pass.T) {
      std::vector<bool> wanted(pass.T);
      for (int64_t i = 0; i < pass.L; i++) wanted[pass.logit_rows[i]] = true;
      pass.wanted_tiles = {make_tiles(pass.sequences, parents.data_ptr<int>(), group, wanted), shape_.kv_heads};
    }
    return pass;
  }

  // Returns memory for logits [rows, vocab]: that of the last pass where nobody holds it any more, as fresh pages of 32 rows of a large
  // vocabulary take milliseconds.
  Tensor make_logits(int64_t rows) {
    const int64_t size = rows * shape_.vocab;
    if (!logits_.defined() || logits_.storage().use_count() > 1 || logits_.numel() < size) logits_ = at::empty({size}, at::kFloat);
    return logits_.narrow(0, 0, size).view({rows, shape_.vocab});
  }

  Tensor finish(Pass& pass) {
    Tensor logits = make_logits(pass.num_logits());
    pass.prepare(logits);
    team_->run([&] { pass.run(); });
    return logits;
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

    void prepare(const Tensor& out) {
      const Shape& s = model.shape_;
      const int64_t wide = (s.heads + 2 * s.kv_heads) * s.head_dim;
      buffers.hidden = at::empty({T, s.hidden}, at::kFloat);
      const auto norms_after = [](const Layer& layer) { return layer.norms.after_attention || layer.norms.after_feed_forward; };
      if (std::any_of(model.layers_.begin(), model.layers_.end(), norms_after)) {
        buffers.added = at::empty({T, s.hidden}, at::kFloat);
        added = buffers.added.data_ptr<float>();
      }
      buffers.qkv = at::empty({T, std::max(wide, s.hidden)}, at::kFloat);  // later takes what `narrow` keeps of `hidden`
      buffers.x = at::empty({std::max((model.fusion_ ? 2 : 1) * T, num_logits()), s.hidden}, at::kBFloat16);
      buffers.attention = at::empty({2, T, s.heads * s.head_dim}, at::kBFloat16);
      buffers.activation = at::empty({T, s.intermediate}, at::kBFloat16);
      if (ahead) buffers.raised = at::empty({model.levels_->count * L, model.levels_->width}, at::kBFloat16);
      if (model.fusion_ && !given) {
        buffers.fused = at::empty({T, model.fusion_->fc.depth}, at::kBFloat16);
        fused = bits(buffers.fused);
      }
      if (model.int8_ && model.is_stored_) {
        const int64_t before = std::max({fused ? model.fusion_->fc.depth : 0, (model.fusion_ ? 2 : 1) * s.hidden, s.heads * s.head_dim});
        const int64_t groups = std::max(before * T, s.hidden * num_logits()) / stored::kGroup, after = s.intermediate * T / stored::kGroup;
        buffers.groups = at::empty({(groups + after) * (int64_t)sizeof(stored::RowGroup)}, at::kByte);
        rows.groups = reinterpret_cast<stored::RowGroup*>(buffers.groups.data_ptr());
        rows_after.groups = rows.groups + groups;
        const int64_t supers = groups / stored::kSuperGroups + 1, all = supers + after / stored::kSuperGroups + 1 + stored::kMostTileRows;
        buffers.supers = at::empty({all * (int64_t)sizeof(stored::RowSuper)}, at::kByte);
        rows.supers = reinterpret_cast<stored::RowSuper*>(buffers.supers.data_ptr());
        rows_after.supers = rows.supers + supers;
      }
      hidden = buffers.hidden.data_ptr<float>();
      qkv = buffers.qkv.data_ptr<float>();
      x = bits(buffers.x);
      queries = bits(buffers.attention);
      attention = queries + T * s.heads * s.head_dim;
      activation = bits(buffers.activation);
      logits = out.data_ptr<float>();
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
    void normalise(int& phase, const std::optional<Tensor>& weight, const Matrix& next, int64_t layer = -1) {
      const Shape& s = model.shape_;
      const auto task = [&](int64_t t) {
        tap(layer, t);
        if (weight)
          rms_norm(hidden + t * s.hidden, weight->data_ptr<float>(), s.eps, s.hidden, x + t * s.hidden);
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
    void add_to_hidden(int& phase, const Input& input, const Matrix& weights, float factor, const std::optional<Tensor>& norm) {
      const int64_t width = model.shape_.hidden;
      const Lanes scale = lanes::all(factor);
      linear(phase, input, T, weights, [&](int64_t first, int rows, int64_t task, const float* c) {
        for (int r = 0; r < rows; r++) {
          const int64_t to = (first + r) * width + task * kTask;
          fetch_to_write((norm ? added : hidden) + to + rows * width);  // of the next sweep
          if (norm)
            std::copy_n(c + r * kTask, kTask, added + to);
          else
            for (int h = 0; h < kTask; h += 16)
              lanes::store(hidden + to + h, lanes::fma(lanes::load(c + r * kTask + h), scale, lanes::load(hidden + to + h)));
        }
      });
      if (norm)
        share(phase, T, [&](int64_t t) {
          add_rms_norm(added + t * width, norm->data_ptr<float>(), model.shape_.eps, factor, width, hidden + t * width);
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
      const float* norm = floats(fusion.features_norm);
      const Input input{norm ? fused : features, rows};
      share(phase, T, [&](int64_t t) {
        if (norm) rms_norm(features + t * depth, norm, model.shape_.eps, depth, fused + t * depth);
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
        rms_norm(to, fusion.embedding_norm.data_ptr<float>(), s.eps, s.hidden, to);
        rms_norm(g, fusion.state_norm.data_ptr<float>(), s.eps, s.hidden, to + s.hidden);
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
      const float* bias = floats(layer.qkv_bias);
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
    void norm_heads(float* heads, int64_t size, const std::optional<Tensor>& weight) {
      if (!weight) return;
      const int64_t group = weight->numel();
      for (int64_t i = 0; i < size; i += group) rms_norm(heads + i, weight->data_ptr<float>(), (float)model.shape_.eps, group);
    }

    // Norms and rotates queries and keys of one token and writes its K/V into its slot.
    void place(const Layer& layer, int64_t t, bf16* pages, bool with_queries) {
      const Shape& s = model.shape_;
      const int64_t d = s.head_dim, first = with_queries ? 0 : s.heads;
      float* row = qkv + t * (s.heads + 2 * s.kv_heads) * d;
      if (with_queries) norm_heads(row, s.heads * d, layer.norms.queries);
      norm_heads(row + s.heads * d, s.kv_heads * d, layer.norms.keys);
      if (layer.shape.rope >= 0) {
        const Rope& rope = model.ropes_[layer.shape.rope];
        const int64_t half = rope.half(), angles = positions[t] * half;
        for (int64_t h = first; h < s.heads + s.kv_heads; h++)
          rotate(row + h * d, half, rope.cosine.data_ptr<float>() + angles, rope.sine.data_ptr<float>() + angles);
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
      bf16* raised = bits(buffers.raised);
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
        rms_norm(ahead + i * width, model.norm_.data_ptr<float>(), model.shape_.eps, width, x + (L + i) * width);
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
        rms_norm(state, model.norm_.data_ptr<float>(), s.eps, s.hidden, x + i * s.hidden);
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
  std::vector<Rope> ropes_;
  std::vector<Layer> layers_;
  Matrix embedding_, head_;
  Tensor norm_, logits_;
  std::optional<Fusion> fusion_;
  std::optional<Levels> levels_;
};
