// Paged attention of one layer: each tile of up to kTileRows (token, head) rows reads its sequence's pages once.
//
// A page of 32 tokens holds, per KV head, keys [2][d/2][16][2] and values [d/16][16][16][2]: the packing of products.h, so
// scores are rows times "weights" K and outputs are probabilities times "weights" V. Probabilities stand in the order of
// positions, and a row's sums run over positions from 0: the result does not depend on what else is in the step, and a
// branch of a tree gives the same bits as the same tokens decoded one by one.
#pragma once
#include <vector>

#include "products.h"
#include "vector_math.h"

constexpr int kPage = 32;
#ifdef PROLEPSIS_AMX
constexpr int kTileRows = amx::kRows;  // queries that share one read of a page
#else
constexpr int kTileRows = kernel::kMaxRows;
#endif

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

// Writes a token's K and V [d] into its slot of a page.
inline void write_slot(const PageLayout& layout, bf16* page, int64_t token, const float* key, const float* value) {
  bf16 rounded[16];
  for (int64_t i = 0; i < layout.head_dim; i += 16) {
    lanes::store_bf16(rounded, lanes::load(key + i));
    for (int64_t k = 0; k < 16; k += 2) std::memcpy(page + layout.key(token, i + k), rounded + k, 4);
    lanes::store_bf16(rounded, lanes::load(value + i));
    for (int64_t k = 0; k < 16; k++) page[layout.value(token, i + k)] = rounded[k];
  }
}

struct Tile {
  int sequence;
  int first, rows;           // rows [first, first + rows) of (token, head) over `tokens`
  std::vector<int> tokens;   // the step's tokens that the rows run over
  std::vector<int> path;     // tree: slot (past the cached context) of each depth; empty for a chain
};

struct Sequence {
  int start, count, cached;
  const int* pages;
};

// Splits a step's sequences into tiles; a tree gets tiles of its own for each leaf's path.
inline std::vector<Tile> make_tiles(const std::vector<Sequence>& sequences, const int* parents, int group) {
  std::vector<Tile> tiles;
  auto add = [&](int s, const std::vector<int>& tokens, const std::vector<int>& path) {
    const int rows = tokens.size() * group;
    for (int first = 0; first < rows; first += kTileRows) {
      const int count = std::min(kTileRows, rows - first);
      const int from = first / group, to = (first + count - 1) / group + 1;
      tiles.push_back({s, first - from * group, count, {tokens.begin() + from, tokens.begin() + to}, path});
    }
  };
  for (int s = 0; s < (int)sequences.size(); s++) {
    const auto& q = sequences[s];
    const int* parent = parents + q.start;
    bool chain = true;
    std::vector<bool> is_leaf(q.count, true), placed(q.count, false);
    for (int i = 0; i < q.count; i++) {
      chain &= parent[i] == i - 1;
      if (parent[i] >= 0) is_leaf[parent[i]] = false;
    }
    if (chain) {
      std::vector<int> tokens(q.count);
      for (int i = 0; i < q.count; i++) tokens[i] = q.start + i;
      add(s, tokens, {});
      continue;
    }
    for (int leaf = 0; leaf < q.count; leaf++) {
      if (!is_leaf[leaf]) continue;
      std::vector<int> path, tokens;
      for (int i = leaf; i >= 0; i = parent[i]) path.insert(path.begin(), i);
      for (int i : path)
        if (!placed[i]) placed[i] = true, tokens.push_back(q.start + i);
      add(s, tokens, path);
    }
  }
  return tiles;
}

class TileAttention {  // scratch of one thread
 public:
  TileAttention(int64_t head_dim, int group) : layout_{head_dim}, group_(group), query_(kTileRows * head_dim) {}

  // queries, output [tokens, heads, d]; pages: KV head's first page, `stride` elements from page to page.
  void run(const Tile& tile, const Sequence& sequence, const int* positions, const bf16* queries, int64_t heads, int64_t kv_head,
           const bf16* pages, int64_t stride, float scale, bf16* output) {
    const int64_t d = layout_.head_dim;
    const int last = tile.tokens.back();
    const int length = positions[last] + 1;  // positions the longest row sees
    const int slots = tile.path.empty() ? length : sequence.cached + tile.path.back() + 1;
    auto row_of = [&](int r) {
      const int i = tile.first + r;
      return (tile.tokens[i / group_] * heads + kv_head * group_ + i % group_) * d;
    };
    for (int r = 0; r < tile.rows; r++) std::copy_n(queries + row_of(r), d, query_.data() + r * d);
    width_ = (std::max(slots, length) + kPage - 1) / kPage * kPage;
    reserve(kTileRows * width_);
    scores(tile, sequence, slots, pages, stride);
    float inverse[kTileRows];
    for (int r = 0; r < tile.rows; r++)
      inverse[r] = softmax(r, tile, sequence.cached, positions[tile.tokens[(tile.first + r) / group_]] + 1, length, scale);
    gather_values(tile, sequence, length, pages, stride);
    outputs(tile.rows, inverse, [&](int r) { return output + row_of(r); });
  }

 private:
  void reserve(int64_t size) {
    if ((int64_t)scores_.size() < size) {
      scores_.resize(size);
      probabilities_.resize(size);
    }
  }

  // A tile with few rows is bound by memory: it also fetches the keys of the page after next, and the values of this one.
  void scores(const Tile& tile, const Sequence& sequence, int slots, const bf16* pages, int64_t stride) {
    const int64_t d = layout_.head_dim, bytes = kPage * d * sizeof(bf16);
    const int count = (slots + kPage - 1) / kPage;
    const bool fetching = tile.rows < kTileRows;
    for (int page = 0; page < count; page++) {
      const bf16* keys = pages + sequence.pages[page] * stride;
      if (fetching) {
        if (page + 2 < count) fetch(pages + sequence.pages[page + 2] * stride, bytes);
        fetch(keys + kPage * d, bytes);
      }
      float* c = scores_.data() + page * kPage;
#ifdef PROLEPSIS_AMX
      amx::product(query_.data(), d, tile.rows, keys, d, c, width_, nullptr);
#else
      kernel::kProducts<0>[tile.rows - 1](query_.data(), d, keys, d / 2, c, width_, nullptr);
#endif
    }
  }

  // Fills row r of the probabilities (not yet divided) up to the page after `length`; returns 1 / their sum.
  float softmax(int r, const Tile& tile, int cached, int visible, int length, float scale) {
    float* s = scores_.data() + r * width_;
    bf16* p = probabilities_.data() + r * width_;
    for (int j = cached; !tile.path.empty() && j < visible; j++) s[j] = s[cached + tile.path[j - cached]];
    const Lanes minus_infinity = lanes::all(-INFINITY);
    Lanes highest = minus_infinity;
    for (int j = 0; j < visible; j += 16)
      highest = lanes::max(highest, lanes::keep_first(visible - j, lanes::load(s + j), minus_infinity));
    const Lanes top = lanes::all(lanes::highest(highest)), factor = lanes::all(scale);
    Lanes sum = lanes::zero();
    for (int j = 0; j < visible; j += 16) {
      const Lanes x = lanes::mul(lanes::sub(lanes::load(s + j), top), factor);
      const Lanes e = lanes::keep_first(visible - j, exp_of(lanes::max(x, lanes::all(-87.0f))), lanes::zero());
      sum = lanes::add(sum, e);
      lanes::store_bf16(p + j, e);
    }
    const int from = (visible + 15) / 16 * 16, to = (length + kPage - 1) / kPage * kPage;
    if (from < to) std::fill(p + from, p + to, 0);
    return 1.0f / lanes::sum(sum);
  }

  // Lists the value pages in order of positions; a tree's tail is gathered along the tile's path.
  void gather_values(const Tile& tile, const Sequence& sequence, int length, const bf16* pages, int64_t stride) {
    values_.clear();
    const int count = (length + kPage - 1) / kPage;
    const int base = tile.path.empty() ? count : sequence.cached / kPage;
    const int64_t offset = kPage * layout_.head_dim;  // values follow keys
    for (int page = 0; page < base; page++) values_.push_back(pages + sequence.pages[page] * stride + offset);
    if (base == count) return;
    tail_.assign((count - base) * offset, 0);
    for (int j = base * kPage; j < length; j++) {
      const int slot = j < sequence.cached ? j : sequence.cached + tile.path[j - sequence.cached];
      const bf16* from = pages + sequence.pages[slot / kPage] * stride;
      bf16* to = tail_.data() + (j / kPage - base) * offset - offset;
      for (int64_t i = 0; i < layout_.head_dim; i++) to[layout_.value(j % kPage, i)] = from[layout_.value(slot % kPage, i)];
    }
    for (int page = base; page < count; page++) values_.push_back(tail_.data() + (page - base) * offset);
  }

#ifdef PROLEPSIS_AMX
  template <class Target>
  void outputs(int rows, const float* inverse, const Target& target) {
    alignas(64) float c[kTileRows * kTask];
    for (int64_t column = 0; column < layout_.head_dim; column += kTask) {
      amx::begin(rows);
      for (size_t page = 0; page < values_.size(); page++) {
        const bf16* block = values_[page] + column * kPage;
        amx::step(probabilities_.data() + page * kPage, width_, rows, block, block + kBlock * kPage);
      }
      amx::end(rows, c, kTask);
      for (int r = 0; r < rows; r++)
        for (int h = 0; h < kTask; h += kBlock)
          lanes::store_bf16(target(r) + column + h, lanes::mul(lanes::load(c + r * kTask + h), lanes::all(inverse[r])));
    }
  }
#else
  template <class Target>
  void outputs(int rows, const float* inverse, const Target& target) {
    static constexpr auto table = []<int... R>(std::integer_sequence<int, R...>) {
      return std::array<void (TileAttention::*)(const float*, const Target&), sizeof...(R)>{&TileAttention::weigh<R + 1, Target>...};
    }(std::make_integer_sequence<int, kTileRows>{});
    (this->*table[rows - 1])(inverse, target);
  }

  // Few rows take several blocks in one sweep: the sums of one are too few to hide latency.
  template <int R, class Target>
  void weigh(const float* inverse, const Target& target) {
    constexpr int kBlocks = 2 * R > kernel::kSums ? 1 : 2;  // head_dim is a multiple of 32
    for (int64_t column = 0; column < layout_.head_dim; column += kBlocks * kBlock) {
      Lanes acc[kBlocks][R];
      for (auto& block : acc)
        for (auto& sum : block) sum = lanes::zero();
      for (size_t page = 0; page < values_.size(); page++)
        kernel::accumulate<R, kBlocks>(acc, probabilities_.data() + page * kPage, width_, values_[page] + column * kPage, kBlock * kPage, kPage / 2);
      for (int r = 0; r < R; r++)
        for (int b = 0; b < kBlocks; b++)
          lanes::store_bf16(target(r) + column + b * kBlock, lanes::mul(acc[b][r], lanes::all(inverse[r])));
    }
  }
#endif

  const PageLayout layout_;
  const int group_;
  int64_t width_ = 0;
  std::vector<bf16> query_, probabilities_, tail_;
  std::vector<float> scores_;
  std::vector<const bf16*> values_;
};
