// Picks one token of a row of logits: temperature, exact truncation, keyed Gumbel noise. The same arithmetic as
// sampling/noise.py and sampling/truncation.py: hash and logarithm use integer and IEEE double operations only, in one
// order and never fused (-ffp-contract=off), so the noise is the same to the bit on every processor.
// Plain loops over blocks; the compiler makes a version for each vector width and the loader takes the widest.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "argmax.h"
#include "noise.h"
#include "threads.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDEST __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define WIDEST
#endif

namespace {

using noise::gumbel_of, noise::kLn2High, noise::kLn2Low, noise::uniform_of, scan::first_of, scan::kBlock, scan::max_of;

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr int64_t kLanes = 16;
constexpr int kBins = 4096;
constexpr int64_t kRowsAlone = 2;  // rows that one thread picks alone
constexpr double kBinsPerNat = 64.0;
constexpr double kNear = 8.0;  // nats below the likeliest token within which a truncated row is mostly decided
constexpr size_t kFew = 1024;  // of those, as many are sorted

// At least gumbel_of: -log(-log u) <= -log(1 - u), and log2(v) >= the exponent of v plus its mantissa's fraction.
inline double gumbel_bound(uint64_t key, uint64_t token) {
  const double v = 1.0 - uniform_of(key, token);
  const double log2_floor = static_cast<double>(static_cast<int64_t>(std::bit_cast<uint64_t>(v))) * 0x1p-52 - 1023.0;
  return 1e-9 - log2_floor * 0x1.62e42fefa39efp-1;
}

// exp for x <= 0, below 1e-15 relative error; 0 under -708.
inline double exponential(double x) {
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
    return scratch;
  }
  std::vector<double> scaled, weight;
  std::vector<int32_t> bin, counts;
  std::vector<double> masses;
  std::vector<int64_t> near;  // tokens less than kNear below the likeliest, by id; none where they are more than kFew
};

WIDEST float max_value(const float* values, int64_t size) { return max_of(values, size); }
WIDEST double max_value(const double* values, int64_t size) { return max_of(values, size); }

WIDEST int64_t argmax_of_row(const float* values, int64_t size) { return first_of(values, size, max_value(values, size)); }
WIDEST int64_t argmax_of_row(const double* values, int64_t size) { return first_of(values, size, max_value(values, size)); }

// (logit - maximum) / temperature: at most 0, so neither a tiny temperature nor huge logits can overflow upwards.
WIDEST void scale(const float* logits, int64_t size, double max, double factor, double* scaled) {
  for (int64_t i = 0; i < size; i++) scaled[i] = (static_cast<double>(logits[i]) - max) * factor;
}

WIDEST void scale(const double* logits, int64_t size, double max, double factor, double* scaled) {
  for (int64_t i = 0; i < size; i++) scaled[i] = (logits[i] - max) * factor;
}

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
  double bounds[kBlock], lanes[kLanes];
  std::fill(bounds + size, bounds + kBlock, kNone);
  std::fill(lanes, lanes + kLanes, kNone);
  for (int64_t i = 0; i < size; i++) bounds[i] = scaled[i] + gumbel_bound(key, first + i);
  for (int64_t i = 0; i < kBlock; i += kLanes)
    for (int64_t j = 0; j < kLanes; j++) lanes[j] = bounds[i + j] > lanes[j] ? bounds[i + j] : lanes[j];
  return *std::max_element(lanes, lanes + kLanes);
}

// The sum of all weights, in one order for any vector width.
WIDEST double mass_of(const double* scaled, int64_t size) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int64_t j = 0; j < kLanes; j++) lanes[j] += exponential(scaled[i + j]);
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  for (; i < size; i++) sum += exponential(scaled[i]);
  return sum;
}

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

void gather_near(Scratch& s) {
  const int64_t size = s.scaled.size();
  s.near.clear();
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t end = std::min(start + kBlock, size);
    if (!reaches(&s.scaled[start], end - start, -kNear)) continue;
    for (int64_t i = start; i < end; i++)
      if (s.scaled[i] > -kNear) s.near.push_back(i);
    if (s.near.size() > kFew) return s.near.clear();
  }
}

// As `take` for top-k and then top-p of what it left, among the near tokens alone; none where they do not hold it all.
std::optional<Cut> cut_near(const Scratch& s, int64_t count, double top_p) {
  if (s.near.empty()) return std::nullopt;
  std::vector<int64_t> ids(s.near);
  std::sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return s.scaled[a] != s.scaled[b] ? s.scaled[a] > s.scaled[b] : a < b; });
  double mass = 0.0;
  if (count > 0) {
    if (count > static_cast<int64_t>(ids.size())) return std::nullopt;
    ids.resize(count);
    for (const int64_t id : ids) mass += exponential(s.scaled[id]);
  } else {
    mass = mass_of(s.scaled.data(), s.scaled.size());
  }
  if (top_p == 1.0) return Cut{s.scaled[ids.back()], ids.back()};
  double sum = 0.0;
  for (const int64_t id : ids)
    if ((sum += exponential(s.scaled[id])) >= top_p * mass) return Cut{s.scaled[id], id};
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

// top-k, then top-p of what top-k left, then min-p. Each keeps a run of the likeliest, so the tightest decides.
Cut find_cut(Scratch& s, const Truncation& t) {
  const int64_t size = s.scaled.size(), count = t.top_k < size ? t.top_k : 0;
  const double top_p = std::min(t.top_p, 1.0);
  Cut cut;
  if (count > 0 || top_p < 1.0) {
    gather_near(s);
    const std::optional<Cut> found = cut_near(s, count, top_p);
    cut = found ? *found : cut_all(s, count, top_p);
  } else {
    s.near.clear();
  }
  if (t.min_p > 0.0) cut.tighten({std::log(t.min_p), std::numeric_limits<int64_t>::max()});
  return cut;
}

struct Row {
  uint64_t address;
  bool wide;  // float64, else float32
  Truncation truncation;
  uint64_t key;
};

template <class T>
void load(const T* logits, double temperature, Scratch& s) {
  const int64_t size = s.scaled.size();
  scale(logits, size, max_value(logits, size), 1.0 / std::max(temperature, 1e-300), s.scaled.data());
}

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
  for (const int64_t id : s.near) {
    if (!cut.keeps(s.scaled[id], id)) continue;
    const double score = s.scaled[id] + gumbel_of(key, id);
    if (score > best) {
      best = score;
      winner = id;
    }
  }
  return winner;
}

template <class T>
int64_t pick_row(const Row& row, Scratch& s) {
  const T* logits = reinterpret_cast<const T*>(row.address);
  if (row.truncation.temperature == 0.0) return argmax_of_row(logits, s.scaled.size());
  load(logits, row.truncation.temperature, s);
  const Cut cut = find_cut(s, row.truncation);
  return !s.near.empty() && cut.value > -kNear ? draw_near(row.key, cut, s) : draw_all(row.key, cut, s);
}

int64_t pick_row(const Row& row, int64_t size) {
  Scratch& scratch = Scratch::of(size);
  return row.wide ? pick_row<double>(row, scratch) : pick_row<float>(row, scratch);
}

// Which thread picks a row does not change its token. Few rows are not worth waking a thread for.
std::vector<int64_t> pick(const std::vector<Row>& rows, int64_t size, int threads) {
  pybind11::gil_scoped_release unlocked;
  const int64_t count = rows.size();
  std::vector<int64_t> tokens(count);
  std::atomic<int64_t> next{0};
  auto job = [&] {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) tokens[i] = pick_row(rows[i], size);
  };
  static std::mutex busy;  // the team serves one engine at a time; another does without
  static std::unique_ptr<Team> team;
  std::unique_lock<std::mutex> mine(busy, std::defer_lock);
  if (threads > 1 && count > kRowsAlone && mine.try_lock()) {
    if (!team || team->size() != threads) team = std::make_unique<Team>(threads);
    team->run(job);
  } else {
    job();
  }
  return tokens;
}

void probabilities(const Row& row, int64_t size, uint64_t target) {
  pybind11::gil_scoped_release unlocked;
  Scratch& s = Scratch::of(size);
  const double temperature = row.truncation.temperature;
  if (row.wide)
    load(reinterpret_cast<const double*>(row.address), temperature, s);
  else
    load(reinterpret_cast<const float*>(row.address), temperature, s);
  const Cut cut = find_cut(s, row.truncation);
  double* out = reinterpret_cast<double*>(target);
  weigh(s.scaled.data(), size, out);
  double sum = 0.0;
  for (int64_t i = 0; i < size; i++) sum += out[i] = cut.keeps(s.scaled[i], i) ? out[i] : 0.0;
  for (int64_t i = 0; i < size; i++) out[i] /= sum;
}

WIDEST void gumbel_run(uint64_t key, const int64_t* tokens, int64_t size, double* out) {
  for (int64_t i = 0; i < size; i++) out[i] = gumbel_of(key, tokens[i]);
}

void gumbel(uint64_t key, uint64_t tokens, int64_t size, uint64_t target) {
  gumbel_run(key, reinterpret_cast<const int64_t*>(tokens), size, reinterpret_cast<double*>(target));
}

std::vector<int64_t> argmax(uint64_t address, int64_t stride, int64_t size, const std::vector<int64_t>& rows) {
  pybind11::gil_scoped_release unlocked;
  const float* logits = reinterpret_cast<const float*>(address);
  std::vector<int64_t> tokens;
  for (const int64_t row : rows) tokens.push_back(argmax_of_row(logits + row * stride, size));
  return tokens;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  py::class_<Row>(m, "Row").def(
      py::init([](uint64_t address, bool wide, double temperature, int64_t top_k, double top_p, double min_p, uint64_t key) {
        return Row{address, wide, {temperature, top_k, top_p, min_p}, key};
      }));
  m.def("pick", &pick);
  m.def("probabilities", &probabilities);
  m.def("gumbel", &gumbel);
  m.def("argmax", &argmax);
}
