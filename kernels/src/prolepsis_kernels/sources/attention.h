// Paged attention of one layer: each tile of up to kTileRows (token, head) rows reads its sequence's pages once.
//
// A page of 32 tokens holds, per KV head, keys [2][d/2][16][2] and values [d/16][16][16][2]: the packing of products.h, so
// scores are rows times "weights" K and outputs are probabilities times "weights" V. Probabilities stand in the order of
// positions, and a row's sums run over positions from 0: the result does not depend on what else is in the step, and a
// branch of a tree gives the same bits as the same tokens decoded one by one. Probabilities before a row's window are zero and
// change no sum, so pages before the windows of all rows of a tile are not read.
#pragma once
#include <bit>
#include <climits>
#include <cmath>
#include <utility>
#include <vector>

#include "products.h"
#include "vector_math.h"

using kernel::Operand;

constexpr int kPage = 32;
#ifdef PROLEPSIS_AMX
constexpr int kTileRows = amx::kRows;  // queries that share one read of a page
#else
constexpr int kTileRows = kernel::kMaxRows;
#endif

constexpr int kFewTiles = 6;  // of a sequence, which do not find its pages in cache

struct PageLayout {  // of one KV head, in elements
  int64_t head_dim;
  int64_t key(int64_t token, int64_t i) const {
    return (token / 16) * head_dim * 16 + (i / 2) * 32 + (token % 16) * 2 + (i & 1);
  }
  int64_t value(int64_t token, int64_t i) const {
    return 32 * head_dim + (i / 16) * 512 + (token / 2) * 32 + (i % 16) * 2 + (token & 1);
  }
  int64_t size() const { return 2 * kPage * head_dim; }
};

// Whether bf16 has numbers for all of these values.
inline bool are_numbers(const float* values, int64_t size) {
  int others = 0;
  for (int64_t i = 0; i < size; i++) others |= (std::bit_cast<uint32_t>(values[i]) & 0x7fffffff) >= 0x7f7f8000;
  return !others;
}

// Writes a token's K and V [d] into its slot of a page. A row that does not see the slot weighs its values by 0, which makes no number
// of what is none: values that are none are written as 0, and the key, whose scores only rows that see it use, is made none in their
// place.
inline void write_slot(const PageLayout& layout, bf16* page, int64_t token, const float* key, const float* value) {
  bf16 rounded[16];
  const bool whole = are_numbers(value, layout.head_dim);
  const Lanes zero = lanes::zero(), none = lanes::all(NAN);
  for (int64_t i = 0; i < layout.head_dim; i += 16) {
    lanes::store_bf16(rounded, whole ? lanes::load(key + i) : none);
    for (int64_t k = 0; k < 16; k += 2) std::memcpy(page + layout.key(token, i + k), rounded + k, 4);
    lanes::store_bf16(rounded, whole ? lanes::load(value + i) : zero);
    for (int64_t k = 0; k < 16; k++) page[layout.value(token, i + k)] = rounded[k];
  }
}

struct Tile {
  int sequence;
  int first, rows;          // rows [first, first + rows) of (token, head) over `tokens`
  std::vector<int> tokens;  // the step's tokens that the rows run over; those of a path stand together
  std::vector<int> leaf;    // tree: of each token, which of `paths` it is on; empty for a chain
  std::vector<std::vector<int>> paths;  // slot (past the cached context) of each depth
};

struct Sequence {
  int start, count, cached;
  const int* pages;
};

// Splits a step's sequences into tiles. A token of a tree is on the path of the first leaf below it. Only tokens that are `wanted`
// have rows; empty: all.
inline std::vector<Tile> make_tiles(const std::vector<Sequence>& sequences, const int* parents, int group, const std::vector<bool>& wanted = {}) {
  std::vector<Tile> tiles;
  const auto has_rows = [&](int token) { return wanted.empty() || wanted[token]; };
  for (int s = 0; s < (int)sequences.size(); s++) {
    const auto& q = sequences[s];
    const int* parent = parents + q.start;
    bool chain = true;
    std::vector<bool> is_leaf(q.count, true), placed(q.count, false);
    for (int i = 0; i < q.count; i++) {
      chain &= parent[i] == i - 1;
      if (parent[i] >= 0) is_leaf[parent[i]] = false;
    }
    std::vector<int> tokens, leaf;
    std::vector<std::vector<int>> paths;
    for (int end = 0; end < q.count; end++) {
      if (chain && has_rows(q.start + end)) tokens.push_back(q.start + end);
      if (chain || !is_leaf[end]) continue;
      std::vector<int> path;
      for (int i = end; i >= 0; i = parent[i]) path.insert(path.begin(), i);
      for (int i : path) {
        if (!placed[i] && has_rows(q.start + i)) tokens.push_back(q.start + i), leaf.push_back(paths.size());
        placed[i] = true;
      }
      paths.push_back(path);
    }
    const int rows = tokens.size() * group;
    for (int first = 0; first < rows; first += kTileRows) {
      const int count = std::min(kTileRows, rows - first);
      const int from = first / group, to = (first + count - 1) / group + 1;
      tiles.push_back({s, first - from * group, count, {tokens.begin() + from, tokens.begin() + to}});
      if (!chain) tiles.back().leaf.assign(leaf.begin() + from, leaf.begin() + to), tiles.back().paths = paths;
    }
  }
  return tiles;
}

// Tiles in the order in which threads take them, each once for every KV head. Of a sequence with many tiles they go head by head, as
// the keys and values of one head stay in cache where those of all do not; of one with few, tile by tile, as the heads of a page lie
// side by side in memory.
struct Tiles {
  struct OfHead {
    int64_t tile, head;
  };
  std::vector<Tile> all;
  std::vector<OfHead> order;

  Tiles() = default;
  Tiles(std::vector<Tile> tiles, int64_t kv_heads) : all(std::move(tiles)) {
    for (int64_t first = 0, end = all.size(); first < end;) {
      int64_t count = 1;  // of this sequence
      while (first + count < end && all[first + count].sequence == all[first].sequence) count++;
      for (int64_t i = 0; i < count * kv_heads; i++)
        order.push_back(count > kFewTiles ? OfHead{first + i % count, i / count} : OfHead{first + i / kv_heads, i % kv_heads});
      first += count;
    }
  }
};

struct Scoring {  // of a layer's attention
  float scale = 1.0f;
  float cap = 0.0f;    // scaled scores s become cap * tanh(s / cap); 0: they stay
  int64_t window = 0;  // positions that a row sees, its own included; 0: all before it
  // Of a row that sees the positions before `visible`: the first one.
  int first(int visible) const { return window > 0 && visible > window ? visible - window : 0; }
};

class TileAttention {  // scratch of one thread
 public:
  TileAttention(int64_t head_dim, int group) : layout_{head_dim}, group_(group), query_(kTileRows * head_dim) {}

  // queries, output [tokens, heads, d]; pages: KV head's first page, `stride` elements from page to page.
  void run(const Tile& tile, const Sequence& sequence, const int* positions, const bf16* queries, int64_t heads, int64_t kv_head,
           const bf16* pages, int64_t stride, const Scoring& scoring, bf16* output) {
    const int64_t d = layout_.head_dim;
    const int cached = sequence.cached;
    int length = 0, slots = 0;  // positions that the longest row sees, and slots that any row does
    begin_ = tile.leaf.empty() ? INT_MAX : cached;
    for (size_t i = 0; i < tile.tokens.size(); i++) {
      const int visible = positions[tile.tokens[i]] + 1;
      length = std::max(length, visible);
      begin_ = std::min(begin_, scoring.first(visible));
      slots = std::max(slots, tile.leaf.empty() ? visible : cached + tile.paths[tile.leaf[i]][visible - cached - 1] + 1);
    }
    begin_ = begin_ / kPage * kPage;
    const auto row_of = [&](int r) {
      const int i = tile.first + r;
      return (tile.tokens[i / group_] * heads + kv_head * group_ + i % group_) * d;
    };
    for (int r = 0; r < tile.rows; r++) copy_row(queries + row_of(r), query_.data() + r * d);
    width_ = (std::max(slots, length) + kPage - 1) / kPage * kPage;
    reserve(kTileRows * width_);
    scores(tile.rows, sequence, slots, pages, stride);
    float inverse[kTileRows];
    for (int r = 0; r < tile.rows; r++) {
      const int i = (tile.first + r) / group_, visible = positions[tile.tokens[i]] + 1;
      if (!tile.leaf.empty()) straighten(r, cached, visible, tile.paths[tile.leaf[i]]);
      inverse[r] = softmax(r, visible, length, scoring);
    }
    find_values(tile, sequence, length, pages, stride);
    const auto target = [&](int r) { return output + row_of(r); };
    if (tile.leaf.empty()) return outputs<false>(tile.rows, inverse, target);
    outputs<true>(tile.rows, inverse, target);
  }

 private:
  void copy_row(const bf16* from, bf16* to) const { std::copy_n(from, layout_.head_dim, to); }
  void copy_row(const bf16* from, float* to) const {
    for (int64_t i = 0; i < layout_.head_dim; i += 16) lanes::store(to + i, lanes::load(from + i));
  }

  void reserve(int64_t size) {
    if ((int64_t)scores_.size() < size) {
      scores_.resize(size);
      probabilities_.resize(size);
    }
  }

  // Where a sequence has few tiles they are bound by memory: they also fetch the keys of the page after next, and the values of this one.
  void scores(int rows, const Sequence& sequence, int slots, const bf16* pages, int64_t stride) {
    const int64_t d = layout_.head_dim, bytes = kPage * d * sizeof(bf16);
    const int count = (slots + kPage - 1) / kPage;
    const bool fetching = sequence.count * group_ <= kFewTiles * kTileRows;
    for (int page = begin_ / kPage; page < count; page++) {
      const bf16* keys = pages + sequence.pages[page] * stride;
      if (fetching) {
        if (page + 2 < count) fetch(pages + sequence.pages[page + 2] * stride, bytes);
        fetch(keys + kPage * d, bytes);
      }
      float* c = scores_.data() + page * kPage;
#ifdef PROLEPSIS_AMX
      amx::product(query_.data(), d, rows, keys, d, c, width_, nullptr);
#else
      kernel::kProducts<Operand, 0>[rows - 1](query_.data(), d, keys, d / 2, c, width_, nullptr);
#endif
    }
  }

  // Brings row r's scores of a tree's slots into the order of positions along its path. A slot is never before its position.
  void straighten(int r, int cached, int visible, const std::vector<int>& path) {
    float* s = scores_.data() + r * width_ + cached;
    for (int depth = 0; depth < visible - cached; depth++) s[depth] = s[path[depth]];
  }

  // Fills row r of the probabilities (not yet divided) from `begin_` up to the page after `length`; returns 1 / their sum.
  float softmax(int r, int visible, int length, const Scoring& scoring) {
    float* s = scores_.data() + r * width_;
    Operand* p = probabilities_.data() + r * width_;
    const int first = scoring.first(visible), from = (first + 15) / 16 * 16, whole = visible / 16 * 16;
    int parts[2], count = 0;  // groups of 16 that the row sees in part
    if (from != first) parts[count++] = from - 16;
    if (whole != visible && (count == 0 || parts[0] != whole)) parts[count++] = whole;
    const auto keep_seen = [&](int j, Lanes v, Lanes other) {
      return lanes::keep_first(first - j, other, lanes::keep_first(visible - j, v, other));
    };
    if (scoring.cap > 0)
      for (int j = first / 16 * 16; j < visible; j += 16)
        lanes::store(s + j, soft_cap(lanes::mul(lanes::load(s + j), lanes::all(scoring.scale)), scoring.cap));
    const Lanes minus_infinity = lanes::all(-INFINITY);
    Lanes highest[2] = {minus_infinity, minus_infinity};
    int next = from;
    for (; next + 32 <= whole; next += 32)
      for (int i = 0; i < 2; i++) highest[i] = lanes::max(highest[i], lanes::load(s + next + 16 * i));
    if (next < whole) highest[0] = lanes::max(highest[0], lanes::load(s + next));
    for (int i = 0; i < count; i++) highest[0] = lanes::max(highest[0], keep_seen(parts[i], lanes::load(s + parts[i]), minus_infinity));
    const float factor = (scoring.cap > 0 ? 1.0f : scoring.scale) * kLog2e;
    const Lanes slope = lanes::all(factor), offset = lanes::all(-factor * lanes::highest(lanes::max(highest[0], highest[1])));
    Lanes sum = lanes::zero();
    for (int j = from; j < whole; j += 16) {
      const Lanes e = power_of_two(lanes::fma(lanes::load(s + j), slope, offset));
      sum = lanes::add(sum, e);
      lanes::store_bf16(p + j, e);
    }
    for (int i = 0; i < count; i++) {
      const Lanes e = keep_seen(parts[i], power_of_two(lanes::fma(lanes::load(s + parts[i]), slope, offset)), lanes::zero());
      sum = lanes::add(sum, e);
      lanes::store_bf16(p + parts[i], e);
    }
    const int unseen = (visible + 15) / 16 * 16, to = (length + kPage - 1) / kPage * kPage;
    std::fill(p + begin_, p + first / 16 * 16, 0);
    if (unseen < to) std::fill(p + unseen, p + to, 0);
    return 1.0f / lanes::sum(sum);
  }

  // A path of a tree, from the page on that holds its first token: rows of the tile, and values in order of positions.
  struct Branch {
    int first, rows;
    size_t pages;  // where its own start in `values_`
  };

  // Lists the value pages that all rows read; then, of a tree, those of each path: the page that the cached context ends in, with the
  // values along the path from there on.
  void find_values(const Tile& tile, const Sequence& sequence, int length, const bf16* pages, int64_t stride) {
    const int count = (length + kPage - 1) / kPage, shared = tile.leaf.empty() ? count : sequence.cached / kPage;
    const int64_t size = kPage * layout_.head_dim;  // of the values, which follow the keys
    values_.clear();
    branches_.clear();
    for (int page = begin_ / kPage; page < shared; page++) values_.push_back(pages + sequence.pages[page] * stride + size);
    if (tile.leaf.empty()) return;
    tail_.assign((tile.leaf.back() - tile.leaf[0] + 1) * (count - shared) * size, 0);
    bf16* tail = tail_.data();
    for (int r = 0; r < tile.rows;) {
      const int leaf = tile.leaf[(tile.first + r) / group_];
      branches_.push_back({r, 0, values_.size()});
      while (r < tile.rows && tile.leaf[(tile.first + r) / group_] == leaf) r++, branches_.back().rows++;
      const auto& path = tile.paths[leaf];
      const int end = std::min<int>(length, sequence.cached + path.size());
      if (shared * kPage < sequence.cached) std::copy_n(pages + sequence.pages[shared] * stride + size, size, tail);
      for (int j = sequence.cached; j < end; j++) {
        const int slot = sequence.cached + path[j - sequence.cached];
        const bf16* from = pages + sequence.pages[slot / kPage] * stride;
        bf16* to = tail + (j / kPage - shared) * size - size;
        for (int64_t i = 0; i < layout_.head_dim; i++) to[layout_.value(j % kPage, i)] = from[layout_.value(slot % kPage, i)];
      }
      for (int page = shared; page < count; page++, tail += size) values_.push_back(tail);
    }
    branches_.push_back({tile.rows, 0, values_.size()});
  }

  // Values weighed by probabilities, into target(row). A tree's sums over what all rows read go on along each path: for all rows,
  // as that is one product, of which those on the path are kept.
  template <bool Tree, class Target>
  void outputs(int rows, const float* inverse, const Target& target) {
    alignas(64) float shared[kTileRows * kTask], sums[kTileRows * kTask];
    const size_t begin = begin_ / kPage;
    for (int64_t column = 0; column < layout_.head_dim; column += kTask) {
      const auto keep = [&](int first, int count) {
        for (int r = first; r < first + count; r++)
          for (int h = 0; h < kTask; h += kBlock)
            lanes::store_bf16(target(r) + column + h, lanes::mul(lanes::load(sums + r * kTask + h), lanes::all(inverse[r])));
      };
      if constexpr (!Tree) {
        weigh(rows, column, begin, 0, values_.size(), nullptr, sums);
        keep(0, rows);
        continue;
      }
      const size_t before = branches_[0].pages;
      weigh(rows, column, begin, 0, before, nullptr, shared);
      for (size_t i = 0; i + 1 < branches_.size(); i++) {
        const size_t first = branches_[i].pages;
        weigh(rows, column, begin + before, first, branches_[i + 1].pages - first, shared, sums);
        keep(branches_[i].first, branches_[i].rows);
      }
    }
  }

  // c[rows][0:32] = `from` (zeros where that is missing) + probabilities from page `page` on times columns of `count` pages of values.
  void weigh(int rows, int64_t column, size_t page, size_t first, size_t count, const float* from, float* c) {
    const Operand* p = probabilities_.data() + page * kPage;
#ifdef PROLEPSIS_AMX
    amx::begin(rows, from);
    for (size_t i = 0; i < count; i++) {
      const bf16* block = values_[first + i] + column * kPage;
      amx::step(p + i * kPage, width_, rows, block, block + kBlock * kPage);
    }
    amx::end(rows, c, kTask);
#else
    static constexpr auto table = []<int... R>(std::integer_sequence<int, R...>) {
      return std::array{weigh_rows<R + 1>...};
    }(std::make_integer_sequence<int, kTileRows>{});
    table[rows - 1](p, width_, values_.data() + first, count, column * kPage, from, c);
#endif
  }

#ifndef PROLEPSIS_AMX
  template <int R>
  static void weigh_rows(const Operand* p, int64_t width, const bf16* const* values, size_t count, int64_t offset, const float* from, float* c) {
    constexpr int kBlocks = kernel::kValueBlocks;
    for (int block = 0; block < 2; block += kBlocks) {
      Lanes acc[R][kBlocks];
      for (int r = 0; r < R; r++)
        for (int b = 0; b < kBlocks; b++) acc[r][b] = from ? lanes::load(from + r * kTask + (block + b) * kBlock) : lanes::zero();
      for (size_t i = 0; i < count; i++)
        kernel::accumulate<R, kBlocks>(acc, p + i * kPage, width, values[i] + offset + block * kBlock * kPage, kPage / 2);
      for (int r = 0; r < R; r++)
        for (int b = 0; b < kBlocks; b++) lanes::store(c + r * kTask + (block + b) * kBlock, acc[r][b]);
    }
  }
#endif

  const PageLayout layout_;
  const int group_;
  int64_t width_ = 0;
  int begin_ = 0;  // first position of the pages that the tile reads
  std::vector<Operand> query_, probabilities_;
  std::vector<bf16> tail_;
  std::vector<float> scores_;
  std::vector<const bf16*> values_;
  std::vector<Branch> branches_;  // and one behind the last
};

// Attends `rounds` times with a chunk of `tokens` behind `cached` ones to one KV head on pages in cache; returns the multiply-adds.
inline int64_t attend_in_cache(int64_t head_dim, int group, int tokens, int cached, int64_t rounds) {
  static thread_local std::vector<bf16> memory;  // fresh pages of the machine would take as long
  const PageLayout layout{head_dim};
  std::vector<int> pages, parents, positions;
  for (int t = 0; t < tokens; t++) parents.push_back(t - 1), positions.push_back(cached + t);
  while ((int)pages.size() * kPage < cached + tokens) pages.push_back(pages.size());
  memory.resize(pages.size() * layout.size());
  std::vector<bf16> queries(tokens * group * head_dim), output(queries.size());
  const std::vector<Tile> tiles = make_tiles({{0, tokens, cached, pages.data()}}, parents.data(), group);
  for (TileAttention attention(head_dim, group); const Tile& tile : tiles)
    for (int64_t i = 0; i < rounds; i++)
      attention.run(tile, {0, tokens, cached, pages.data()}, positions.data(), queries.data(), group, 0, memory.data(), layout.size(), {}, output.data());
  return rounds * tokens * (2 * cached + tokens + 1) * group * head_dim;
}
