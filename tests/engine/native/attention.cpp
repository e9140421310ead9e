// Checks attention over pages: chains of every length and trees, with windows and capped scores, each against sums written out in
// double, and bit by bit against its tokens decoded one by one. Prints the first difference and exits 1.
#include "attention.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

constexpr int kHead = 64, kGroup = 3, kKvHeads = 2, kHeads = kGroup * kKvHeads, kMaxSlots = 160;
constexpr bf16 kNaN = 0x7fc0;
const PageLayout kLayout{kHead};

static float random_value() { return std::rand() % 2001 / 500.0f - 2; }
static float widened(bf16 bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// Tokens [cached + count] of one sequence, by their place among its slots; the pages lie in a shuffled order.
struct Case {
  int cached;
  std::vector<int> parents;  // of the new tokens
  Scoring scoring;
  std::vector<int> pages = {3, 0, 4, 1, 2};
  std::vector<float> keys, values;  // [kKvHeads][slots][kHead]
  std::vector<bf16> queries;        // [new tokens][kHeads][kHead]

  Case(int cached, std::vector<int> parents, Scoring scoring) : cached(cached), parents(parents), scoring(scoring) {
    for (int i = 0; i < kKvHeads * kMaxSlots * kHead; i++) keys.push_back(random_value()), values.push_back(random_value());
    for (size_t i = 0; i < parents.size() * kHeads * kHead; i++) queries.push_back(to_bf16(random_value()));
  }

  std::vector<int> ancestors(int token) const {  // slots before it, itself last
    std::vector<int> path;
    for (int i = token; i >= 0; i = parents[i]) path.insert(path.begin(), cached + i);
    for (int slot = cached; slot-- > 0;) path.insert(path.begin(), slot);
    return path;
  }
};

// Memory [page][KV head] with the K/V of `slots`, in this order; in the first `unread` pages there are NaNs.
static std::vector<bf16> memory_of(const Case& one, const std::vector<int>& slots, int unread) {
  std::vector<bf16> memory(one.pages.size() * kKvHeads * kLayout.size());
  for (size_t place = 0; place < slots.size(); place++)
    for (int h = 0; h < kKvHeads; h++) {
      const int64_t from = (h * kMaxSlots + slots[place]) * kHead;
      bf16* page = memory.data() + (one.pages[place / kPage] * kKvHeads + h) * kLayout.size();
      write_slot(kLayout, page, place % kPage, one.keys.data() + from, one.values.data() + from);
      if ((int)place / kPage < unread) std::fill_n(page, kLayout.size(), kNaN);
    }
  return memory;
}

static std::vector<bf16> attend(const Case& one, const std::vector<int>& slots, int cached, const std::vector<int>& parents,
                                const std::vector<bf16>& queries) {
  const int unread = parents.size() == 1 ? one.scoring.first(slots.size()) / kPage : 0;
  const std::vector<bf16> memory = memory_of(one, slots, unread);
  std::vector<int> positions;
  for (int parent : parents) positions.push_back(parent < 0 ? cached : positions[parent] + 1);
  const std::vector<Sequence> sequences = {{0, (int)parents.size(), cached, one.pages.data()}};
  std::vector<bf16> output(queries.size());
  TileAttention attention(kHead, kGroup);
  for (const Tile& tile : make_tiles(sequences, parents.data(), kGroup))
    for (int h = 0; h < kKvHeads; h++)
      attention.run(tile, sequences[0], positions.data(), queries.data(), kHeads, h, memory.data() + h * kLayout.size(),
                    kKvHeads * kLayout.size(), one.scoring, output.data());
  return output;
}

// The columns of one head's output.
static std::vector<double> expected(const Case& one, int token, int head) {
  const int h = head / kGroup;
  const std::vector<int> before = one.ancestors(token);
  double total = 0;
  std::vector<double> weighed(kHead);
  for (size_t place = one.scoring.first(before.size()); place < before.size(); place++) {
    const int64_t from = (h * kMaxSlots + before[place]) * kHead;
    double score = 0;
    for (int i = 0; i < kHead; i++)
      score += widened(one.queries[(token * kHeads + head) * kHead + i]) * widened(to_bf16(one.keys[from + i]));
    score *= one.scoring.scale;
    const double weight = std::exp(one.scoring.cap > 0 ? one.scoring.cap * std::tanh(score / one.scoring.cap) : score);
    total += weight;
    for (int i = 0; i < kHead; i++) weighed[i] += weight * widened(to_bf16(one.values[from + i]));
  }
  for (double& column : weighed) column /= total;
  return weighed;
}

static void check(const char* name, const Case& one) {
  const int count = one.parents.size();
  std::vector<int> slots;
  for (int slot = 0; slot < one.cached + count; slot++) slots.push_back(slot);
  const std::vector<bf16> together = attend(one, slots, one.cached, one.parents, one.queries);
  for (int token = 0; token < count; token++) {
    const std::vector<int> seen = one.ancestors(token);
    const auto first = one.queries.begin() + token * kHeads * kHead;
    const std::vector<bf16> alone = attend(one, seen, seen.size() - 1, {-1}, {first, first + kHeads * kHead});
    for (int head = 0; head < kHeads; head++) {
      const std::vector<double> columns = expected(one, token, head);
      for (int i = 0; i < kHead; i++) {
        const int place = (token * kHeads + head) * kHead + i;
        const double wanted = columns[i];
        const bool same = together[place] == alone[head * kHead + i];
        if (same && std::fabs(widened(together[place]) - wanted) < 0.02) continue;
        std::printf("%s (window %d, cap %g) after %d tokens, token %d, head %d, column %d: %g, alone %g, expected %g\n", name,
                    (int)one.scoring.window, one.scoring.cap, one.cached, token, head, i,
                    widened(together[place]), widened(alone[head * kHead + i]), wanted);
        std::exit(1);
      }
    }
  }
}

static void check_all(const Scoring& scoring) {
  for (int cached : {0, 1, 31, 32, 45, 96}) {
    for (int count : {1, 2, 4, 5, 11, 12, 40}) {
      std::vector<int> chain;
      for (int i = 0; i < count; i++) chain.push_back(i - 1);
      check("chain", {cached, chain, scoring});
    }
    check("two branches", {cached, {-1, 0, 0}, scoring});
    check("two roots", {cached, {-1, -1, 0, 1, 1}, scoring});
    check("tree", {cached, {-1, 0, 0, 0, 1, 1, 2, 4, 7, 7, 3, 10}, scoring});
    std::vector<int> wide(30, 0);  // more rows than a tile has
    wide[0] = -1;
    check("wide tree", {cached, wide, scoring});
  }
}

int main() {
  check_all({0.125f});
  for (int window : {1, 3, 16, 33, 40, 64}) check_all({0.125f, 0.0f, window});
  check_all({0.25f, 5.0f, 0});
  check_all({0.25f, 5.0f, 33});
  std::puts("ok");
}
