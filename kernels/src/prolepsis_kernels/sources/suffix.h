// Finds where a sequence's last tokens occurred before and grows a tree of what followed there, for all sequences of a step in
// one call: engine/drafting/proposers/suffix_index.py, whose words hold here too, with the same drafts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "draft_nodes.h"
#include "followed.h"
#include "noise.h"

namespace suffix {

using drafts::kRoot, drafts::Node;

constexpr int64_t kMaxMatch = 48, kEnough = 10, kSeparator = -1, kCopied = 8;
constexpr int kSizes = 3;
constexpr int64_t kSize[kSizes] = {4, 2, 1}, kQuota[kSizes] = {6, 5, 5};
// Of a match of 0 to kMaxMatch tokens.
constexpr int64_t kMatchClass[kMaxMatch + 1] = {0, 0, 1, 2, 3, 3, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 8,
                                                8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 9};
constexpr double kMatchPrior[] = {0.15, 0.30, 0.45, 0.60, 0.70, 0.80, 0.88, 0.95, 0.97, 0.985};
constexpr double kFloor = 0.005;
enum Kind : int64_t { kFollowed, kOwn, kGiven, kShared, kKinds };
constexpr double kWeight[kKinds] = {1.0, 1.0, 0.5, 0.5};
constexpr int64_t kConfirms[kKinds] = {2, 1, 1, 1};

// A place where the last `match` tokens of the sequence occurred before, or are taken for so many. What followed are `length`
// tokens from `first` on; past the end of the sequence's own tokens they repeat.
struct Continuation {
  int64_t first, length, match, kind;
  bool is_own;
};

// Places found in one text and their matches, each once.
using Places = std::vector<std::pair<int64_t, int64_t>>;

inline Places::const_iterator find_place(const Places& places, int64_t place) {
  return std::find_if(places.begin(), places.end(), [&](const auto& found) { return found.first == place; });
}

struct Hash {
  size_t operator()(unsigned __int128 key) const { return noise::mix(static_cast<uint64_t>(key) + noise::mix(static_cast<uint64_t>(key >> 64))); }
};

// Occurrences within one text.
class TextIndex {
 public:
  int64_t num_tokens() const { return tokens_.size(); }
  const Tokens& tokens() const { return tokens_; }

  void extend(const Tokens& tokens) {
    for (const int32_t token : tokens) {
      for (int i = 0; i < kSizes; i++) {
        int64_t& last = heads_[i][key(tokens_, kSize[i])];
        previous_[i].push_back(last);
        last = num_tokens();
      }
      tokens_.push_back(token);
    }
  }

  // Places behind the last tokens of `context`, longest n-gram first, most recent first within it.
  Places find(const Tokens& context) const {
    Places found;
    for (int i = 0; i < kSizes && found.size() < kEnough; i++) {
      const auto head = heads_[i].find(key(context, kSize[i]));
      int64_t place = head == heads_[i].end() ? 0 : head->second;
      for (int64_t quota = kQuota[i]; place && quota; place = previous_[i][place], quota--)
        if (find_place(found, place) == found.end()) found.push_back({place, match(place, context, kSize[i])});
    }
    return found;
  }

  // Tokens from the place to the next separator, at most `length`.
  int64_t followers(int64_t place, int64_t length) const {
    int64_t number = 0;
    while (number < length && place + number < num_tokens() && tokens_[place + number] != kSeparator) number++;
    return number;
  }

 private:
  // The last `size` tokens, each plus one, 0 where there is none.
  static unsigned __int128 key(const Tokens& tokens, int64_t size) {
    unsigned __int128 packed = 0;
    const int64_t end = tokens.size();
    for (int64_t i = end - size; i < end; i++) packed = packed << 32 | (i < 0 ? 0u : static_cast<uint32_t>(tokens[i]) + 1u);
    return packed;
  }

  // How many tokens before `place` equal the last of `context`, given that `known` do.
  int64_t match(int64_t place, const Tokens& context, int64_t known) const {
    const int64_t size = context.size(), longest = std::min({kMaxMatch, place, size});
    int64_t match = known;
    while (match < longest && tokens_[place - 1 - match] == context[size - 1 - match]) match++;
    return match;
  }

  Tokens tokens_;
  std::unordered_map<unsigned __int128, int64_t, Hash> heads_[kSizes];
  std::vector<int64_t> previous_[kSizes];  // 0: none
};

// A sequence's own tokens, a text given with it, and the place that it follows in one of them.
class SequenceIndex {
 public:
  explicit SequenceIndex(bool searches_own) : searches_own_(searches_own) {}

  int64_t num_tokens() const { return own_.num_tokens(); }
  bool goes_on() const { return place_ && place_->goes_on(); }
  void give(const Tokens& tokens) { given_.extend(tokens); }
  void follow_given() { place_.emplace(0, 0, false); }

  // Takes in the tokens that are new.
  void extend(const Tokens& tokens) {
    const int64_t known = num_tokens();
    own_.extend(tokens);
    if (place_) place_->follow(followed(), own_.tokens(), known);
  }

  // Continuations, those of the place that is followed first.
  std::vector<Continuation> find(int64_t length) {
    Places own = searches_own_ ? own_.find(own_.tokens()) : Places(), given = given_.find(own_.tokens());
    if (!goes_on()) choose(own, given);
    std::vector<Continuation> found;
    const auto add = [&](int64_t place, int64_t match, Kind kind, bool is_own) {
      const int64_t followers = !is_own ? given_.followers(place, length) : place < num_tokens() ? length : 0;
      found.push_back({place, followers, match, kind, is_own});
    };
    if (place_) {
      Places& places = place_->is_own() ? own : given;
      for (const auto& [place, match] : place_->guesses(followed(), own_.tokens())) {
        const auto seen = find_place(places, place);
        add(place, seen == places.end() ? match : std::max(match, seen->second), kFollowed, place_->is_own());
        if (seen != places.end()) places.erase(seen);
      }
    }
    for (const auto& [place, match] : own) add(place, match, kOwn, true);
    for (const auto& [place, match] : given) add(place, match, kGiven, false);
    return found;
  }

  int32_t token(const Continuation& c, int64_t depth) const {
    return c.is_own ? own_.tokens()[c.first + depth % (num_tokens() - c.first)] : given_.tokens()[c.first + depth];
  }

  // The last tokens, at most `size`.
  Tokens last(int64_t size) const { return {own_.tokens().end() - std::min(size, num_tokens()), own_.tokens().end()}; }

 private:
  const Tokens& followed() const { return place_->is_own() ? own_.tokens() : given_.tokens(); }

  // Follows the place with the longest match if that is long enough: what is there is being copied.
  void choose(const Places& own, const Places& given) {
    int64_t longest = kCopied - 1;
    for (const Places* places : {&own, &given})
      for (const auto& [place, match] : *places)
        if (match > longest) longest = match, place_.emplace(place, match, places == &own);
  }

  TextIndex own_, given_;
  std::optional<FollowedPlace> place_;
  bool searches_own_;
};

// Zeros that take memory as they are written.
template <class T>
inline std::unique_ptr<T[], decltype(&std::free)> zeros(int64_t size) {
  auto* memory = static_cast<T*>(std::calloc(size, sizeof(T)));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, &std::free};
}

// Occurrences in past outputs: one ring of tokens for all cache salts, each token with the tag of its salt.
class SharedIndex {
 public:
  explicit SharedIndex(int64_t max_bytes)
      : capacity_(std::max<int64_t>(64, max_bytes / kBytesPerToken)), tokens_(zeros<int32_t>(capacity_)), tags_(zeros<int64_t>(capacity_)),
        heads_{zeros<int64_t>(capacity_), zeros<int64_t>(capacity_), zeros<int64_t>(capacity_)},
        previous_{zeros<int64_t>(capacity_), zeros<int64_t>(capacity_), zeros<int64_t>(capacity_)} {}

  int64_t num_tokens() const { return std::min(end_, capacity_); }
  int64_t num_bytes() const { return capacity_ * kBytesPerToken; }
  int32_t token(int64_t place) const { return tokens_[place % capacity_]; }

  // Keeps the tokens of an output for later sequences of the tag; of one longer than the ring, its end.
  void add(int64_t tag, const Tokens& tokens) {
    write(kSeparator, tag);
    const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(tokens.size()) - (capacity_ - 2));
    for (int64_t i = first; i < static_cast<int64_t>(tokens.size()); i++) {
      for (int j = 0; j < kSizes; j++) {
        int64_t& previous = previous_[j][end_ % capacity_];
        previous = 0;
        if (kSize[j] > i - first) continue;
        int64_t& head = heads_[j][slot(tag, &tokens[i - kSize[j]], kSize[j])];
        previous = head;
        head = end_;
      }
      write(tokens[i], tag);
    }
  }

  // Adds continuations behind the last tokens of `context` in outputs of the tag.
  void find(int64_t tag, const Tokens& context, int64_t length, std::vector<Continuation>& found) const {
    if (end_ == 0) return;
    Places places;
    for (int i = 0; i < kSizes && places.size() < kEnough; i++)
      if (kSize[i] <= static_cast<int64_t>(context.size())) walk(i, tag, context, places);
    for (const auto& [place, match] : places) found.push_back({place, followers(place, length), match, kShared, false});
  }

 private:
  static constexpr int64_t kBytesPerToken = 4 + 8 + kSizes * 16;

  int64_t slot(int64_t tag, const int32_t* tokens, int64_t size) const {
    uint64_t hash = static_cast<uint64_t>(tag) + size;
    for (int64_t i = 0; i < size; i++) hash = noise::mix(hash + noise::kStep + static_cast<uint32_t>(tokens[i]));
    return hash % static_cast<uint64_t>(capacity_);
  }

  void walk(int i, int64_t tag, const Tokens& context, Places& found) const {
    const int64_t oldest = std::max<int64_t>(0, end_ - capacity_);
    int64_t place = heads_[i][slot(tag, &context[context.size() - kSize[i]], kSize[i])];
    for (int64_t quota = kQuota[i]; place > oldest && quota; place = previous_[i][place % capacity_], quota--) {
      if (tags_[place % capacity_] != tag || find_place(found, place) != found.end()) continue;
      const int64_t known = match(place, context, oldest);
      if (known >= kSize[i]) found.push_back({place, known});
    }
  }

  int64_t match(int64_t place, const Tokens& context, int64_t oldest) const {
    const int64_t size = context.size(), longest = std::min({kMaxMatch, size, place - oldest});
    int64_t match = 0;
    while (match < longest && token(place - 1 - match) == context[size - 1 - match]) match++;
    return match;
  }

  // Tokens from the place to the end of its output, at most `length`.
  int64_t followers(int64_t place, int64_t length) const {
    const int64_t most = std::min(length, end_ - place);
    int64_t number = 0;
    while (number < most && token(place + number) != kSeparator) number++;
    return number;
  }

  void write(int32_t token, int64_t tag) {
    tokens_[end_ % capacity_] = token;
    tags_[end_ % capacity_] = tag;
    end_++;
  }

  template <class T>
  using Ring = std::unique_ptr<T[], decltype(&std::free)>;
  const int64_t capacity_;
  Ring<int32_t> tokens_;
  Ring<int64_t> tags_, heads_[kSizes], previous_[kSizes];
  int64_t end_ = 0;  // absolute count of tokens written; place p lies at p % capacity
};

// The likeliest nodes of the trie of continuations, best first.
class Tree {
 public:
  Tree(const SequenceIndex& local, const SharedIndex* shared, const std::vector<Continuation>& found) : local_(local), shared_(shared), found_(found) {
    for (const Continuation& c : found_) weights_.push_back(kWeight[c.kind] * static_cast<double>(int64_t{1} << std::min(c.match, kMaxMatch)));
  }

  std::vector<Node> grow(int64_t limit) {
    Group group(found_.size());
    for (size_t i = 0; i < group.size(); i++) group[i] = i;
    expect({1.0, 0, 0, kRoot, 0, 0, group});
    std::vector<Node> nodes;
    while (!heap_.empty() && static_cast<int64_t>(nodes.size()) < limit) {
      Expected best = heap_.top();
      heap_.pop();
      nodes.push_back({best.token, best.parent, best.alive, best.bucket});
      best.parent = nodes.size() - 1;
      expect(best);
    }
    return nodes;
  }

 private:
  using Group = std::vector<size_t>;  // continuations that agree so far

  // A node that may follow; as the parent of others `parent` is its own place.
  struct Expected {
    double alive;
    int64_t order, token, parent, bucket, depth;
    Group followers;
    bool operator<(const Expected& other) const { return alive != other.alive ? alive < other.alive : order > other.order; }
  };

  // Adds the next tokens of a node's continuations.
  void expect(const Expected& above) {
    std::vector<std::pair<int64_t, Group>> by_token;
    double total = 0.0;
    for (const size_t i : above.followers) {
      if (above.depth >= found_[i].length) continue;
      const int64_t token = token_at(found_[i], above.depth);
      const auto same = std::find_if(by_token.begin(), by_token.end(), [&](const auto& entry) { return entry.first == token; });
      (same == by_token.end() ? by_token.emplace_back(token, Group()) : *same).second.push_back(i);
      total += weights_[i];
    }
    for (auto& [token, followers] : by_token) {
      double weight = 0.0;
      for (const size_t i : followers) weight += weights_[i];
      const auto [bucket, rate] = confidence(by_token.size() == 1 ? 1.0 : weight / total, followers, above.depth);
      if (above.alive * rate >= kFloor)
        heap_.push({above.alive * rate, num_expected_++, token, above.parent, bucket, above.depth + 1, std::move(followers)});
    }
  }

  int64_t token_at(const Continuation& c, int64_t depth) const {
    return c.kind == kShared ? shared_->token(c.first + depth) : local_.token(c, depth);
  }

  // Bucket and prior acceptance of the token that the followers agree on.
  std::pair<int64_t, double> confidence(double share, const Group& followers, int64_t depth) const {
    int64_t longest = 0;
    for (const size_t i : followers) longest = std::max(longest, found_[i].match + depth * kConfirms[found_[i].kind]);
    const int64_t match_class = kMatchClass[std::min(longest, kMaxMatch)];
    const int64_t share_class = share > 0.95 ? 3 : share > 0.6 ? 2 : share > 0.25 ? 1 : 0;
    const int64_t bucket = ((match_class * 4 + share_class) * 2 + (followers.size() > 1)) * kKinds + found_[followers[0]].kind;
    return {bucket, kMatchPrior[match_class] * share};
  }

  const SequenceIndex& local_;
  const SharedIndex* shared_;
  const std::vector<Continuation>& found_;
  std::vector<double> weights_;
  std::priority_queue<Expected> heap_;
  int64_t num_expected_ = 0;
};

// The draft of a sequence; its index takes in the tokens that are new. Without a shared index from what belongs to the sequence alone.
inline std::vector<Node> propose(const SharedIndex* shared, SequenceIndex& local, const Tokens& tokens, int64_t tag, int64_t limit) {
  local.extend(tokens);
  std::vector<Continuation> found = local.find(limit);
  if (shared != nullptr) shared->find(tag, local.last(kMaxMatch), limit, found);
  return Tree(local, shared, found).grow(limit);
}

}  // namespace suffix
