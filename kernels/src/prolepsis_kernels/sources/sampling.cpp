// Picks one token of a row of logits: temperature, exact truncation, keyed Gumbel noise. The same arithmetic as
// engine/sampling/noise.py and sampling/truncation.py: hash and logarithm use integer and IEEE double operations only, in one
// order and never fused (-ffp-contract=off), so the noise is the same to the bit on every processor.
// Plain loops over blocks; the compiler makes a version for each vector width and the loader takes the widest.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "argmax.h"
#include "face.h"
#include "noise.h"
#include "threads.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define WIDEST
#endif
#define INLINE __attribute__((always_inline)) inline  // a call from a version for wide vectors would leave it

namespace {

using noise::gumbel_of, noise::kLn2High, noise::kLn2Low, noise::uniform_of, scan::first_of, scan::kBlock, scan::max_of;

constexpr int64_t kNoNode = -1;  // above the first nodes of a draft, and where a token leaves it
constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr int64_t kLanes = 16;
constexpr int kBins = 4096;
constexpr double kBinsPerNat = 64.0;
constexpr double kNear = 8.0;  // nats below the likeliest token within which a truncated row is mostly decided
constexpr size_t kFew = 1024;  // of those, as many are sorted
constexpr double kRoughly = 1e-4;  // relative error of a rough mass, at most

// At least gumbel_of: -log(-log u) <= -log(1 - u), and log2(v) >= the exponent of v plus its mantissa's fraction.
inline double gumbel_bound(uint64_t key, uint64_t token) {
  const double v = 1.0 - uniform_of(key, token);
  const double log2_floor = static_cast<double>(static_cast<int64_t>(std::bit_cast<uint64_t>(v))) * 0x1p-52 - 1023.0;
  return 1e-9 - log2_floor * 0x1.62e42fefa39efp-1;
}

// exp for x <= 0, below 1e-15 relative error; 0 under -708.
INLINE double exponential(double x) {
  constexpr double kRound = 0x1.8p52;
  const double y = x < -708.0 ? -708.0 : x;
  const double shifted = y * 0x1.71547652b82fep0 + kRound;
  const double n = shifted - kRound;
  const double r = (y - n * kLn2High) - n * kLn2Low;
  double p = 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const double scale = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
  return x < -708.0 ? 0.0 : p * scale;
}

struct Truncation {
  double temperature;
  int64_t top_k;  // 0: all
  double top_p, min_p;
};

// Keeps the tokens above `value` and those at it with an id up to `last`.
struct Cut {
  double value = kNone;
  int64_t last = std::numeric_limits<int64_t>::max();
  bool keeps(double x, int64_t id) const { return x > value || (x == value && id <= last); }
  void tighten(const Cut& other) {
    if (other.value > value || (other.value == value && other.last < last)) *this = other;
  }
};

// A token less than kNear below the likeliest.
struct NearToken {
  int64_t id;
  double scaled;
};

// One thread's buffers for a row of `size` tokens.
struct Scratch {
  // The calling thread's own buffers, kept between calls: fresh ones cost as much as the work done in them.
  static Scratch& of(int64_t size) {
    thread_local Scratch scratch;
    scratch.scaled.resize(size);
    scratch.weight.resize(size);
    scratch.bin.resize(size);
    scratch.counts.resize(kBins);
    scratch.masses.resize(kBins);
    scratch.peaks.resize((size + kBlock - 1) / kBlock);
    return scratch;
  }
  std::vector<double> scaled, weight;
  std::vector<int32_t> bin, counts;
  std::vector<double> masses;
  std::vector<NearToken> near;  // by id; none where they are more than kFew
  std::vector<double> peaks;    // the largest logit of each kBlock tokens
};

WIDEST float max_value(const float* values, int64_t size) { return max_of(values, size); }
WIDEST double max_value(const double* values, int64_t size) { return max_of(values, size); }

// Joins the 2 * kHalf values to the first of them, half by half: loops of fixed length become vectors.
template <int64_t kHalf, class T, class Join>
INLINE void fold(T* values, const Join& join) {
  for (int64_t i = 0; i < kHalf; i++) values[i] = join(values[i], values[kHalf + i]);
  if constexpr (kHalf > 1) fold<kHalf / 2>(values, join);
}

template <class T>
INLINE T larger_of(T a, T b) {
  return a > b ? a : b;
}

// Writes the largest of each block; returns the largest of all.
template <class T>
INLINE double find_peaks(const T* values, int64_t size, double* peaks) {
  T block[kBlock], best = -std::numeric_limits<T>::infinity();
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t length = std::min(kBlock, size - start);
    std::copy(values + start, values + start + length, block);
    std::fill(block + length, block + kBlock, -std::numeric_limits<T>::infinity());
    fold<kBlock / 2>(block, larger_of<T>);
    *peaks++ = block[0];
    best = larger_of(block[0], best);
  }
  return best;
}

WIDEST double peaks_of(const float* values, int64_t size, double* peaks) { return find_peaks(values, size, peaks); }
WIDEST double peaks_of(const double* values, int64_t size, double* peaks) { return find_peaks(values, size, peaks); }

WIDEST int64_t argmax_of_row(const float* values, int64_t size) { return first_of(values, size, max_value(values, size)); }
WIDEST int64_t argmax_of_row(const double* values, int64_t size) { return first_of(values, size, max_value(values, size)); }

// (logit - maximum) / temperature: at most 0, so neither a tiny temperature nor huge logits can overflow upwards.
struct Scale {
  Scale(double max, double temperature) : max(max), factor(1.0 / std::max(temperature, 1e-300)) {}
  double operator()(double logit) const { return (logit - max) * factor; }
  double max, factor;
};

template <class T>
INLINE void scale_all(const T* logits, int64_t size, const Scale& scale, double* scaled) {
  for (int64_t i = 0; i < size; i++) scaled[i] = scale(logits[i]);
}

WIDEST void scale_row(const float* logits, int64_t size, const Scale& scale, double* scaled) { scale_all(logits, size, scale, scaled); }
WIDEST void scale_row(const double* logits, int64_t size, const Scale& scale, double* scaled) { scale_all(logits, size, scale, scaled); }

WIDEST void weigh(const double* scaled, int64_t size, double* weight) {
  for (int64_t i = 0; i < size; i++) weight[i] = exponential(scaled[i]);
}

// Bins of 1/64 nat below the maximum; the last takes the rest.
WIDEST void place(const double* scaled, int64_t size, int32_t* bin) {
  for (int64_t i = 0; i < size; i++) {
    const double below = scaled[i] * -kBinsPerNat;
    bin[i] = static_cast<int32_t>(below < kBins - 1 ? below : kBins - 1);
  }
}

WIDEST void add_noise(const double* scaled, int64_t size, uint64_t key, uint64_t first, double* scores) {
  for (int64_t i = 0; i < size; i++) scores[i] = scaled[i] + gumbel_of(key, first + i);
}

// At least the largest score among these tokens, at most kBlock of them.
WIDEST double best_possible(const double* scaled, int64_t size, uint64_t key, uint64_t first) {
  double bounds[kBlock];
  std::fill(bounds + size, bounds + kBlock, kNone);
  for (int64_t i = 0; i < size; i++) bounds[i] = scaled[i] + gumbel_bound(key, first + i);
  fold<kBlock / 2>(bounds, larger_of<double>);
  return bounds[0];
}

// The sum of all weights, in one order for any vector width.
template <class T>
INLINE double sum_of_weights(const T* logits, int64_t size, const Scale& scale) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int64_t j = 0; j < kLanes; j++) lanes[j] += exponential(scale(logits[i + j]));
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  for (; i < size; i++) sum += exponential(scale(logits[i]));
  return sum;
}

WIDEST double mass_of(const float* logits, int64_t size, const Scale& scale) { return sum_of_weights(logits, size, scale); }
WIDEST double mass_of(const double* logits, int64_t size, const Scale& scale) { return sum_of_weights(logits, size, scale); }

// exp for -87 <= y <= 0, to 1e-5 of its value.
INLINE float rough_exponential(float y) {
  constexpr float kRound = 0x1.8p23f;
  const float shifted = y * 0x1.715476p0f + kRound;
  const float r = y - (shifted - kRound) * 0x1.62e43p-1f;
  float p = 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
}

// The sum of all weights to kRoughly of its value, at a part of the cost; not a number, which decides nothing, where `factor` is
// infinite.
template <class T>
INLINE double rough_sum_of_weights(const T* logits, int64_t size, T max, float factor) {
  constexpr float kLeast = -87.0f;  // its weight is next to nothing
  float weights[kBlock];
  double sum = 0.0;
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t length = std::min(kBlock, size - start);
    std::fill(weights + length, weights + kBlock, kLeast);
    for (int64_t i = 0; i < length; i++) weights[i] = static_cast<float>(logits[start + i] - max) * factor;
    for (int64_t i = 0; i < kBlock; i++) weights[i] = weights[i] < kLeast ? kLeast : weights[i];
    for (int64_t i = 0; i < kBlock; i++) weights[i] = rough_exponential(weights[i]);
    fold<kBlock / 2>(weights, std::plus<>());
    sum += weights[0];
  }
  return sum;
}

WIDEST double rough_mass_of(const float* logits, int64_t size, float max, float factor) { return rough_sum_of_weights(logits, size, max, factor); }
WIDEST double rough_mass_of(const double* logits, int64_t size, double max, float factor) { return rough_sum_of_weights(logits, size, max, factor); }

WIDEST bool reaches(const double* scaled, int64_t size, double value) {
  int hits = 0;
  for (int64_t i = 0; i < size; i++) hits |= scaled[i] >= value;
  return hits;
}

std::vector<int64_t> sorted_bin(const Scratch& s, int bin) {
  std::vector<int64_t> ids;
  ids.reserve(s.counts[bin]);
  for (size_t i = 0; i < s.bin.size(); i++)
    if (s.bin[i] == bin) ids.push_back(i);
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return s.scaled[a] > s.scaled[b]; });
  return ids;
}

struct Reached {
  Cut cut;
  double mass;  // of all that the cut keeps
};

// The shortest run of tokens, likeliest first (lowest id among equals), with `count` members or with `mass`.
Reached take(const Scratch& s, int64_t count, double mass) {
  int64_t before = 0;
  double sum = 0.0;
  for (int b = 0; b < kBins; b++) {
    if (s.counts[b] == 0) continue;
    if (before + s.counts[b] < count && sum + s.masses[b] < mass) {
      before += s.counts[b];
      sum += s.masses[b];
      continue;
    }
    for (const int64_t id : sorted_bin(s, b)) {
      sum += s.weight[id];
      if (++before >= count || sum >= mass) return {{s.scaled[id], id}, sum};
    }
  }
  return {{}, sum};
}

template <class T>
void gather_near(const T* logits, int64_t size, const Scale& scale, Scratch& s) {
  s.near.clear();
  for (int64_t start = 0; start < size; start += kBlock) {
    if (!(scale(s.peaks[start / kBlock]) > -kNear)) continue;
    for (int64_t i = start; i < std::min(start + kBlock, size); i++)
      if (const double scaled = scale(logits[i]); scaled > -kNear) s.near.push_back({i, scaled});
    if (s.near.size() > kFew) return s.near.clear();
  }
}

// As `take` for top-k and then top-p of what it left, among the near tokens alone; none where they do not hold it all.
// A rough mass of all tokens decides wherever its error cannot matter.
template <class T>
std::optional<Cut> take_near(const T* logits, int64_t size, const Scale& scale, int64_t count, double top_p, std::vector<NearToken> near) {
  const auto is_likelier = [](const NearToken& a, const NearToken& b) { return a.scaled != b.scaled ? a.scaled > b.scaled : a.id < b.id; };
  if (count > static_cast<int64_t>(near.size())) return std::nullopt;
  if (count > 0) {
    std::nth_element(near.begin(), near.begin() + (count - 1), near.end(), is_likelier);
    near.resize(count);
  }
  std::sort(near.begin(), near.end(), is_likelier);
  if (top_p == 1.0) return Cut{near.back().scaled, near.back().id};
  double least = 0.0, most = 0.0, sum = 0.0;  // bounds of the mass
  if (count > 0) {
    for (const NearToken& token : near) least = most += exponential(token.scaled);
  } else {
    const double rough = rough_mass_of(logits, size, static_cast<T>(scale.max), scale.factor);
    least = rough * (1.0 - kRoughly), most = rough * (1.0 + kRoughly);
  }
  for (const NearToken& token : near) {
    sum += exponential(token.scaled);
    if (sum >= top_p * least && sum < top_p * most) least = most = mass_of(logits, size, scale);
    if (sum >= top_p * most) return Cut{token.scaled, token.id};
  }
  return std::nullopt;
}

// Counts and masses of the bins; masses only where the nucleus needs them.
void fill_bins(Scratch& s, bool with_mass) {
  const int64_t size = s.scaled.size();
  place(s.scaled.data(), size, s.bin.data());
  std::fill(s.counts.begin(), s.counts.end(), 0);
  std::fill(s.masses.begin(), s.masses.end(), 0.0);
  if (with_mass) weigh(s.scaled.data(), size, s.weight.data());
  for (int64_t i = 0; i < size; i++) {
    s.counts[s.bin[i]]++;
    if (with_mass) s.masses[s.bin[i]] += s.weight[i];
  }
}

// The same over all tokens.
Cut cut_all(Scratch& s, int64_t count, double top_p) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  constexpr double kEver = std::numeric_limits<double>::infinity();
  fill_bins(s, top_p < 1.0);
  double mass = 0.0;
  for (const double m : s.masses) mass += m;
  Cut cut;
  if (count > 0) {
    const Reached largest = take(s, count, kEver);
    cut = largest.cut;
    mass = largest.mass;
  }
  if (top_p < 1.0) cut.tighten(take(s, kAll, top_p * mass).cut);
  return cut;
}

// (logit - maximum) / temperature of all tokens, for what the near ones do not decide.
template <class T>
void load(const T* logits, const Scale& scale, Scratch& s) {
  scale_row(logits, s.scaled.size(), scale, s.scaled.data());
}

// top-k, then top-p of what top-k left, then min-p. Each keeps a run of the likeliest, so the tightest decides. Afterwards the
// scratch holds in `near` all that is kept, or no near tokens and all tokens scaled.
template <class T>
Cut find_cut(const T* logits, const Scale& scale, const Truncation& t, Scratch& s) {
  const int64_t size = s.scaled.size(), count = t.top_k < size ? t.top_k : 0;
  const double top_p = std::min(t.top_p, 1.0);
  const Cut likely{t.min_p > 0.0 ? std::log(t.min_p) : kNone};
  const bool truncates = count > 0 || top_p < 1.0;
  std::optional<Cut> cut;
  s.near.clear();
  if (truncates || likely.value > -kNear) gather_near(logits, size, scale, s);
  if (!s.near.empty()) cut = truncates ? take_near(logits, size, scale, count, top_p, s.near) : likely;
  if (!cut) {
    s.near.clear();
    load(logits, scale, s);
    cut = truncates ? cut_all(s, count, top_p) : Cut();
  }
  cut->tighten(likely);
  return *cut;
}

struct Row {
  const void* logits;
  int64_t wide;  // float64, else float32
  Truncation truncation;
  uint64_t key;
};

// The largest score among the tokens that the cut keeps; the lowest id among equals.
int64_t draw_all(uint64_t key, const Cut& cut, const Scratch& s) {
  const int64_t size = s.scaled.size();
  double scores[kBlock], best = kNone;
  int64_t winner = 0;
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t length = std::min(kBlock, size - start);
    const double* scaled = &s.scaled[start];
    if (!reaches(scaled, length, cut.value) || best_possible(scaled, length, key, start) <= best) continue;
    add_noise(scaled, length, key, start, scores);
    for (int64_t i = 0; i < length; i++)
      if (scores[i] > best && cut.keeps(scaled[i], start + i)) {
        best = scores[i];
        winner = start + i;
      }
  }
  return winner;
}

// The same where all that the cut keeps is near.
int64_t draw_near(uint64_t key, const Cut& cut, const Scratch& s) {
  double best = kNone;
  int64_t winner = 0;
  for (const NearToken& token : s.near) {
    if (!cut.keeps(token.scaled, token.id)) continue;
    const double score = token.scaled + gumbel_of(key, token.id);
    if (score > best) {
      best = score;
      winner = token.id;
    }
  }
  return winner;
}

template <class T>
int64_t pick_row(const T* logits, const Truncation& truncation, uint64_t key, Scratch& s) {
  const int64_t size = s.scaled.size();
  if (truncation.temperature == 0.0) return argmax_of_row(logits, size);
  const Cut cut = find_cut(logits, Scale(peaks_of(logits, size, s.peaks.data()), truncation.temperature), truncation, s);
  return s.near.empty() ? draw_all(key, cut, s) : draw_near(key, cut, s);
}

int64_t pick_row(const Row& row, int64_t size) {
  Scratch& s = Scratch::of(size);
  if (row.wide) return pick_row(static_cast<const double*>(row.logits), row.truncation, row.key, s);
  return pick_row(static_cast<const float*>(row.logits), row.truncation, row.key, s);
}

// Does `work(i)` for each of `count` rows, on a team that is awake from a pass, or alone. Which thread picks a row does not change
// its token.
template <class Work>
void share(int64_t count, Team* team, const Work& work) {
  std::atomic<int64_t> next{0};
  auto job = [&] {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(i);
  };
  if (team && count > 1)
    team->run(job);
  else
    job();
}

// A sequence's draft to verify (engine/drafting/verify.py): the row after its last committed token, then those of its nodes; the output
// position of the first token, the tokens that end it, and the most to emit.
struct DraftRows {
  int64_t first_row;
  Truncation truncation;
  uint64_t key, position;
  int64_t num_nodes, num_ends, limit;
};

// One of `DraftRows` with its own tokens, parents and ends, and where its result goes: the emitted tokens, the accepted nodes, how many
// these are, and whether the last token, which ends the sequence, was drafted too.
struct Walk {
  const DraftRows& rows;
  const int64_t *draft, *parents, *ends;
  int64_t *tokens, *path, *counts;

  int64_t child(int64_t node, int64_t token) const {
    for (int64_t i = node + 1; i < rows.num_nodes; i++)
      if (draft[i] == token && parents[i] == node) return i;
    return kNoNode;
  }

  // The target's pick decides at each node, from the root down, until it leaves the draft or ends the sequence.
  void run(const float* logits, int64_t stride, int64_t size) const {
    Scratch& scratch = Scratch::of(size);
    int64_t num_tokens = 0, num_accepted = 0;
    for (int64_t node = kNoNode;;) {
      const uint64_t key = noise::position_key(rows.key, rows.position + num_tokens);
      const int64_t token = pick_row(logits + (rows.first_row + 1 + node) * stride, rows.truncation, key, scratch);
      tokens[num_tokens++] = token;
      node = child(node, token);
      const bool is_over = std::find(ends, ends + rows.num_ends, token) != ends + rows.num_ends || num_tokens == rows.limit;
      if (is_over || node == kNoNode) {
        counts[0] = num_tokens, counts[1] = num_accepted, counts[2] = node != kNoNode;
        return;
      }
      path[num_accepted++] = node;
    }
  }
};

template <class T>
void probabilities_of(const T* logits, const Truncation& truncation, Scratch& s, double* out) {
  const int64_t size = s.scaled.size();
  const Scale scale(peaks_of(logits, size, s.peaks.data()), truncation.temperature);
  const Cut cut = find_cut(logits, scale, truncation, s);
  load(logits, scale, s);
  weigh(s.scaled.data(), size, out);
  double sum = 0.0;
  for (int64_t i = 0; i < size; i++) sum += out[i] = cut.keeps(s.scaled[i], i) ? out[i] : 0.0;
  for (int64_t i = 0; i < size; i++) out[i] /= sum;
}

void probabilities(const Row& row, int64_t size, double* out) {
  Scratch& s = Scratch::of(size);
  if (row.wide)
    probabilities_of(static_cast<const double*>(row.logits), row.truncation, s, out);
  else
    probabilities_of(static_cast<const float*>(row.logits), row.truncation, s, out);
}

WIDEST void gumbel_run(uint64_t key, const int64_t* tokens, int64_t size, double* out) {
  for (int64_t i = 0; i < size; i++) out[i] = gumbel_of(key, tokens[i]);
}

WIDEST bool all_below_infinity(const float* values, int64_t size) {
  int others = 0;
  for (int64_t i = 0; i < size; i++) others |= !(values[i] < std::numeric_limits<float>::infinity());
  return !others;
}

}  // namespace

PROLEPSIS_EXPORT int64_t prolepsis_pick(const Row* rows, int64_t count, int64_t size, Team* team, int64_t* tokens) {
  return face::call([&] { share(count, team, [&](int64_t i) { tokens[i] = pick_row(rows[i], size); }); });
}
// Tokens and parents of the drafts, and their ends, stand one after another. The result of a draft of n nodes has n + 1 places in `tokens`
// and `path`, and three in `counts`.
PROLEPSIS_EXPORT int64_t prolepsis_verify(const float* logits, int64_t stride, int64_t size, const DraftRows* drafts, int64_t count,
                                          const int64_t* nodes, const int64_t* parents, const int64_t* ends, Team* team, int64_t* tokens,
                                          int64_t* path, int64_t* counts) {
  return face::call([&] {
    std::vector<Walk> walks;
    for (int64_t i = 0, node = 0; i < count; i++) {
      walks.push_back({drafts[i], nodes + node, parents + node, ends, tokens + node + i, path + node + i, counts + 3 * i});
      node += drafts[i].num_nodes;
      ends += drafts[i].num_ends;
    }
    share(count, team, [&](int64_t i) { walks[i].run(logits, stride, size); });
  });
}
PROLEPSIS_EXPORT int64_t prolepsis_probabilities(const Row* row, int64_t size, double* out) {
  return face::call([&] { probabilities(*row, size, out); });
}
PROLEPSIS_EXPORT int64_t prolepsis_gumbel(uint64_t key, const int64_t* tokens, int64_t size, double* out) {
  return face::call([&] { gumbel_run(key, tokens, size, out); });
}
// Of each of `rows` the lowest id of its largest value.
PROLEPSIS_EXPORT int64_t prolepsis_argmax(const float* logits, int64_t stride, int64_t size, const int64_t* rows, int64_t count,
                                          int64_t* tokens) {
  return face::call([&] {
    for (int64_t i = 0; i < count; i++) tokens[i] = argmax_of_row(logits + rows[i] * stride, size);
  });
}
// Of each of `rows` whether its values are numbers below infinity.
PROLEPSIS_EXPORT int64_t prolepsis_below_infinity(const float* logits, int64_t stride, int64_t size, const int64_t* rows, int64_t count,
                                                  int64_t* are_below) {
  return face::call([&] {
    for (int64_t i = 0; i < count; i++) are_below[i] = all_below_infinity(logits + rows[i] * stride, size);
  });
}
