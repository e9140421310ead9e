// The nodes of a draft (engine/drafting/draft.py) while it is made, and what Python gets of it.
#pragma once
#include <cstdint>
#include <vector>

namespace drafts {

constexpr int64_t kRoot = -1;

struct Node {
  int64_t token, parent;
  double survival;
  int64_t bucket;
};

// Nodes in order, but the chain of first children, from the root down, in front (engine/drafting/draft.py, principal_first).
inline std::vector<int64_t> principal_first(const std::vector<Node>& nodes) {
  std::vector<int64_t> chain, rest;
  for (size_t i = 0; i < nodes.size(); i++) (nodes[i].parent == (chain.empty() ? kRoot : chain.back()) ? chain : rest).push_back(i);
  chain.insert(chain.end(), rest.begin(), rest.end());
  return chain;
}

// Where the nodes of a draft go.
struct Output {
  int64_t *tokens, *parents, *buckets;
  double* survival;

  void write(const std::vector<Node>& nodes) const {
    const std::vector<int64_t> order = principal_first(nodes);
    std::vector<int64_t> place(nodes.size());
    for (size_t i = 0; i < nodes.size(); i++) {
      const Node& node = nodes[order[i]];
      place[order[i]] = i;
      tokens[i] = node.token;
      parents[i] = node.parent == kRoot ? kRoot : place[node.parent];
      survival[i] = node.survival;
      buckets[i] = node.bucket;
    }
  }
};

}  // namespace drafts
