// Merges two drafts of one sequence into one tree: engine/drafting/candidate.py, whose words hold here too, with the same drafts.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "draft_nodes.h"

namespace merging {

using drafts::kRoot, drafts::Node;

constexpr int64_t kLevels = 17, kGrid = 256, kShared = 0, kContested = 2;

// A draft with the survival of its nodes.
struct Scored {
  const int64_t *tokens, *parents;
  const double* survival;
  int64_t size;
};

// A node of either draft or both, and which one of all nodes of both it was first.
struct Merged {
  int64_t token, parent, kind, origin;
  double rate, survival;
};

// Steps of a rate's log-odds, by rate in steps of the grid.
inline int64_t level_of(double rate) {
  static const std::array<int64_t, kGrid> levels = [] {
    std::array<int64_t, kGrid> made;
    for (int64_t i = 0; i < kGrid; i++) {
      const double step = std::nearbyint(2.0 * std::log((static_cast<double>(i) + 0.5) / (static_cast<double>(kGrid - i) - 0.5)));
      made[i] = std::clamp<int64_t>(static_cast<int64_t>(step), -8, 8) + 8;
    }
    return made;
  }();
  return levels[std::clamp<int64_t>(static_cast<int64_t>(kGrid * rate), 0, kGrid - 1)];
}

// Adds a draft's nodes that may survive; returns their parents.
inline std::set<int64_t> add(std::vector<Merged>& nodes, const Scored& draft, int64_t kind, int64_t first) {
  std::vector<int64_t> places;
  std::set<int64_t> above;
  for (int64_t i = 0; i < draft.size; i++) {
    places.push_back(kRoot);
    if (draft.survival[i] <= 0.0) continue;  // so are all nodes below it
    const int64_t parent = draft.parents[i], at = parent == kRoot ? kRoot : places[parent];
    const double rate = parent == kRoot ? draft.survival[i] : draft.survival[i] / draft.survival[parent];
    above.insert(at);
    const auto twin = std::find_if(nodes.begin(), nodes.end(), [&](const Merged& n) { return n.parent == at && n.token == draft.tokens[i]; });
    places[i] = twin - nodes.begin();
    if (twin == nodes.end())
      nodes.push_back({draft.tokens[i], at, kind, first + i, rate, 0.0});
    else
      twin->kind = kShared, twin->rate = std::max(twin->rate, rate);
  }
  return above;
}

// Writes the `limit` likeliest nodes of both drafts, and for each which of the nodes of both it was first; returns their number.
inline int64_t merge(const Scored& first, const Scored& second, int64_t limit, const drafts::Output& output, int64_t* origins) {
  std::vector<Merged> nodes;
  const std::set<int64_t> parents_in_first = add(nodes, first, 1, 0);
  const std::set<int64_t> parents_in_second = add(nodes, second, 2, first.size);
  for (Merged& node : nodes) node.survival = node.parent == kRoot ? node.rate : node.rate * nodes[node.parent].survival;
  std::vector<int64_t> likeliest(nodes.size()), place(nodes.size());
  std::iota(likeliest.begin(), likeliest.end(), 0);
  std::stable_sort(likeliest.begin(), likeliest.end(), [&](int64_t a, int64_t b) { return nodes[a].survival > nodes[b].survival; });
  likeliest.resize(std::min<size_t>(likeliest.size(), limit));
  std::vector<Node> kept;
  for (const int64_t i : likeliest) {  // parents stay before their children
    const Merged& node = nodes[i];
    const bool is_contested = node.kind != kShared && parents_in_first.count(node.parent) && parents_in_second.count(node.parent);
    place[i] = kept.size();
    const int64_t bucket = (node.kind + (is_contested ? kContested : 0)) * kLevels + level_of(node.rate);
    kept.push_back({node.token, node.parent == kRoot ? kRoot : place[node.parent], node.survival, bucket});
  }
  const std::vector<int64_t> order = drafts::principal_first(kept);
  for (size_t i = 0; i < order.size(); i++) origins[i] = nodes[likeliest[order[i]]].origin;
  output.write(kept);
  return kept.size();
}

}  // namespace merging
