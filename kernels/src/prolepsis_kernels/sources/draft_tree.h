// A sample's draft tree over the levels of a head's lookahead, grown as engine/drafting/proposers/head_tree.py grows one, in one call.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "levels.h"
#include "noise.h"

// How trees grow, as in EAGLE-2: candidates looked at after a node, children that it keeps, nodes of a level that are expanded,
// and the survival below which nodes are dropped.
struct TreeParams {
  int64_t num_candidates, max_children, max_expanded;
  double min_survival;
};

// The limits of one sample's tree: levels, nodes, and the survival below which nodes are not expanded; and how it samples
// (temperature 0: greedy). `position` is the output position of the first drafted token.
struct TreeSpec {
  int64_t max_depth, node_budget;
  double expansion_threshold, temperature;
  int64_t top_k;
  double top_p;
  uint64_t key, position;
};

// A tree: the principal chain in front, then the likeliest first. `chances` are given the parent, `survival` from the root.
struct DraftTree {
  std::vector<int64_t> tokens, parents;
  std::vector<double> survival, chances;
};

struct Candidate {
  int64_t token, draft;  // id of the target and of the head
  double chance;
};

// Candidates in the order of their chances to be the sample's next token `level` drafted tokens on: likeliest of the head's, or
// by log-probability / temperature plus keyed noise within the nucleus of these candidates (engine/drafting/proposers/candidates.py).
inline void rank(const TreeSpec& spec, int64_t level, std::vector<Candidate>& found) {
  if (spec.temperature == 0.0) {
    for (Candidate& c : found) c.chance = std::exp(c.chance);
    return;
  }
  const uint64_t key = noise::position_key(spec.key, spec.position + level);
  const auto scaled = [&](const Candidate& c) { return c.chance / spec.temperature; };
  double all = 0.0, before = 0.0, total = 0.0, best = -INFINITY;
  for (const Candidate& c : found) all += std::exp(scaled(c) - scaled(found[0]));
  size_t kept = 0;
  for (; kept < found.size() && before < spec.top_p * all && (spec.top_k <= 0 || static_cast<int64_t>(kept) < spec.top_k); kept++)
    before += std::exp(scaled(found[kept]) - scaled(found[0]));
  found.resize(kept);
  for (Candidate& c : found) best = std::max(best, c.chance = scaled(c) + noise::gumbel_of(key, c.token));
  for (Candidate& c : found) total += c.chance = std::exp(c.chance - best);
  for (Candidate& c : found) c.chance /= total;
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.chance > b.chance; });
}

class TreeBuilder {
 public:
  TreeBuilder(const TreeParams& params, const TreeSpec& spec) : params_(params), spec_(spec) {}

  // Selects the nodes of the last level to expand; false where the tree is done.
  bool select() {
    expanding_.clear();
    if (++level_ >= spec_.max_depth) return false;
    for (size_t i = 0; i < nodes_.size(); i++)
      if (nodes_[i].depth == level_ && nodes_[i].survival > spec_.expansion_threshold) expanding_.push_back(i);
    std::stable_sort(expanding_.begin(), expanding_.end(), [&](int64_t a, int64_t b) { return nodes_[a].survival > nodes_[b].survival; });
    expanding_.resize(std::min<size_t>(expanding_.size(), params_.max_expanded));
    std::sort(expanding_.begin(), expanding_.end());
    return !expanding_.empty();
  }

  int64_t level() const { return level_; }
  const std::vector<int64_t>& expanding() const { return expanding_; }
  int64_t draft_id(int64_t node) const { return nodes_[node].draft; }

  // Adds what is expected after `parent` (-1: the committed tokens); `found` are the head's candidates with log-probabilities.
  void grow(int64_t parent, std::vector<Candidate>& found) {
    rank(spec_, level_, found);
    const double above = parent < 0 ? 1.0 : nodes_[parent].survival;
    for (size_t i = 0; i < found.size() && static_cast<int64_t>(i) < params_.max_children; i++)
      if (above * found[i].chance >= params_.min_survival)
        nodes_.push_back({found[i].token, found[i].draft, parent, level_ + 1, above * found[i].chance, found[i].chance});
  }

  // The likeliest nodes within the node budget.
  DraftTree rerank() const {
    std::vector<int64_t> order(nodes_.size()), chain, rest;
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return nodes_[a].survival > nodes_[b].survival; });
    order.resize(std::min<size_t>(order.size(), spec_.node_budget));
    for (const int64_t node : order) (nodes_[node].parent == (chain.empty() ? -1 : chain.back()) ? chain : rest).push_back(node);
    chain.insert(chain.end(), rest.begin(), rest.end());
    std::vector<int64_t> place(nodes_.size());
    DraftTree grown;
    for (size_t i = 0; i < chain.size(); i++) {
      const Node& node = nodes_[chain[i]];
      place[chain[i]] = i;
      grown.tokens.push_back(node.token);
      grown.parents.push_back(node.parent < 0 ? -1 : place[node.parent]);
      grown.survival.push_back(node.survival);
      grown.chances.push_back(node.chance);
    }
    return grown;
  }

 private:
  struct Node {
    int64_t token, draft, parent, depth;
    double survival, chance;
  };
  TreeParams params_;
  TreeSpec spec_;
  std::vector<Node> nodes_;
  std::vector<int64_t> expanding_;
  int64_t level_ = 0;
};

// The first `count` of a row's `stride` draft ids and log-probabilities as candidates; `ids` are the target's.
inline void candidates(const int* drafts, const float* logs, int64_t row, int64_t stride, int64_t count, const std::vector<int64_t>& ids,
                       std::vector<Candidate>& found) {
  found.clear();
  for (int64_t i = row * stride; i < row * stride + std::min(count, stride); i++) found.push_back({ids[drafts[i]], drafts[i], logs[i]});
}

// What a pass that looks ahead gave: logits [(1 + n) * rows, vocab], states [n * rows, hidden] and what of them meets a token.
struct Ahead {
  const float *logits, *states, *entered;
  int64_t rows;
};

// A tree for each of `specs`, whose rows are the first of the logits; then follow those of each level (`Decoder::look_ahead`).
inline std::vector<DraftTree> grow_trees(Team& team, const Levels& levels, const Floats& norm, float eps, const Ahead& ahead, int64_t shortlist,
                                         const TreeParams& params, const TreeSpec* specs) {
  const int64_t further = levels.count * ahead.rows, all = ahead.rows + further;
  std::vector<int> drafts(all * shortlist), next;
  std::vector<float> logs(all * shortlist), next_logs;
  top_k(team, ahead.logits, all, levels.target_ids.size(), shortlist, drafts.data(), logs.data());
  std::vector<Candidate> found;
  std::vector<DraftTree> grown;
  for (int64_t row = 0; row < ahead.rows; row++) {
    TreeBuilder tree(params, specs[row]);
    candidates(drafts.data(), logs.data(), row, shortlist, params.num_candidates, levels.target_ids, found);
    tree.grow(-1, found);
    while (tree.select()) {
      std::vector<Drafted> wanted;
      for (const int64_t node : tree.expanding()) wanted.push_back({(tree.level() - 1) * ahead.rows + row, tree.draft_id(node)});
      const int64_t count = std::min(params.num_candidates, shortlist);
      next.resize(wanted.size() * count);
      next_logs.resize(wanted.size() * count);
      follow(team, levels, norm, eps, ahead.states, ahead.entered, further, drafts.data() + ahead.rows * shortlist, shortlist, wanted, count,
             next.data(), next_logs.data());
      for (size_t i = 0; i < wanted.size(); i++) {
        candidates(next.data(), next_logs.data(), i, count, params.num_candidates, levels.target_ids, found);
        tree.grow(tree.expanding()[i], found);
      }
    }
    grown.push_back(tree.rerank());
  }
  return grown;
}
