// A place in a text that a sequence follows with changes: engine/drafting/proposers/followed.py, whose words hold here too.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace suffix {

constexpr int64_t kFollowedBonus = 8, kNearestBonus = 1, kReplaced = 1, kInserted = 0, kMostReplaced = 3, kSure = 4, kAhead = 128, kBehind = 32;

using Tokens = std::vector<int32_t>;

class FollowedPlace {
 public:
  FollowedPlace(int64_t anchor, int64_t run, bool is_own) : anchor_(anchor), run_(run), is_own_(is_own) {}

  bool is_own() const { return is_own_; }
  bool goes_on() const { return num_new_ == 0; }

  // Follows the sequence's tokens from `first` on; `source` is the text.
  void follow(const Tokens& source, const Tokens& tokens, int64_t first) {
    for (int64_t end = first + 1; end <= static_cast<int64_t>(tokens.size()); end++) {
      const int64_t size = source.size(), known = is_own_ ? std::min(end - 1, size) : size;
      if (num_new_ == 0 && anchor_ < known && source[anchor_] == tokens[end - 1]) {
        anchor_++, run_++;
        continue;
      }
      num_new_++;
      const auto [place, match] = nearest(source, tokens, end);
      if (match == kSure) anchor_ = place, run_ = match, num_new_ = 0;
    }
  }

  // Where the text may go on, and how many equal tokens that is worth; the first of equal places counts.
  std::vector<std::pair<int64_t, int64_t>> guesses(const Tokens& source, const Tokens& tokens) const {
    if (num_new_ == 0) return {{anchor_, run_ + kFollowedBonus}};
    std::vector<std::pair<int64_t, int64_t>> guesses;
    const auto add = [&](int64_t place, int64_t match) {
      if (std::none_of(guesses.begin(), guesses.end(), [&](const auto& guess) { return guess.first == place; })) guesses.push_back({place, match});
    };
    const auto [place, match] = nearest(source, tokens, tokens.size());
    if (match) add(place, match + kNearestBonus);
    add(anchor_, kInserted);
    if (num_new_ <= kMostReplaced) add(anchor_ + num_new_, kReplaced);
    return guesses;
  }

 private:
  std::pair<int64_t, int64_t> nearest(const Tokens& source, const Tokens& tokens, int64_t end) const {
    const int64_t last = std::min<int64_t>(anchor_ + kAhead, is_own_ ? end - 1 : source.size());
    const int64_t most = std::min(num_new_, kSure), first = std::max<int64_t>(0, anchor_ - kBehind);
    int64_t best = 0, longest = 0;
    const auto take = [&](int64_t place) {
      int64_t match = 0;
      while (match < std::min(most, place) && source[place - 1 - match] == tokens[end - 1 - match]) match++;
      if (match > longest) best = place, longest = match;
      return longest == most;
    };
    for (int64_t place = anchor_ + 1; place <= last; place++)
      if (take(place)) return {best, longest};
    for (int64_t place = std::min<int64_t>(anchor_, source.size()); place > first; place--)
      if (take(place)) break;
    return {best, longest};
  }

  int64_t anchor_, run_, num_new_ = 0;
  bool is_own_;
};

}  // namespace suffix
