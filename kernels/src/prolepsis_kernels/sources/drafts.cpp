// The C face of what proposing does in native calls: the suffix index and its trees, and merged drafts.
#include "face.h"
#include "merge.h"
#include "suffix.h"

using suffix::SequenceIndex, suffix::SharedIndex;

PROLEPSIS_EXPORT int64_t prolepsis_sequence(int64_t searches_own) {
  return face::call([&] { return new SequenceIndex(searches_own != 0); });
}
PROLEPSIS_EXPORT int64_t prolepsis_sequence_free(SequenceIndex* index) {
  return face::call([&] { delete index; });
}
PROLEPSIS_EXPORT int64_t prolepsis_sequence_size(const SequenceIndex* index) {
  return face::call([&] { return index->num_tokens(); });
}
PROLEPSIS_EXPORT int64_t prolepsis_sequence_give(SequenceIndex* index, const int32_t* tokens, int64_t count) {
  return face::call([&] { index->give({tokens, tokens + count}); });
}
PROLEPSIS_EXPORT int64_t prolepsis_sequence_follow_given(SequenceIndex* index) {
  return face::call([&] { index->follow_given(); });
}
PROLEPSIS_EXPORT int64_t prolepsis_sequence_goes_on(const SequenceIndex* index) {
  return face::call([&] { return index->goes_on(); });
}
PROLEPSIS_EXPORT int64_t prolepsis_shared(int64_t max_bytes) {
  return face::call([&] { return new SharedIndex(max_bytes); });
}
PROLEPSIS_EXPORT int64_t prolepsis_shared_free(SharedIndex* index) {
  return face::call([&] { delete index; });
}
PROLEPSIS_EXPORT int64_t prolepsis_shared_add(SharedIndex* index, int64_t tag, const int32_t* tokens, int64_t count) {
  return face::call([&] { index->add(tag, {tokens, tokens + count}); });
}
PROLEPSIS_EXPORT int64_t prolepsis_shared_bytes(const SharedIndex* index) {
  return face::call([&] { return index->num_bytes(); });
}
PROLEPSIS_EXPORT int64_t prolepsis_shared_size(const SharedIndex* index) {
  return face::call([&] { return index->num_tokens(); });
}

// A draft for each of `count` sequences, whose new tokens stand one after another. Writes the number of nodes of each, and its nodes where
// those of the drafts before it with all of their limits would end.
PROLEPSIS_EXPORT int64_t prolepsis_propose(const SharedIndex* shared, int64_t count, SequenceIndex* const* indexes, const int32_t* tokens,
                                           const int64_t* num_tokens, const int64_t* tags, const int64_t* limits, int64_t* counts,
                                           int64_t* nodes, int64_t* parents, int64_t* buckets, double* survival) {
  return face::call([&] {
    for (int64_t i = 0, place = 0; i < count; place += limits[i++]) {
      const auto grown = suffix::propose(shared, *indexes[i], {tokens, tokens + num_tokens[i]}, tags[i], limits[i]);
      tokens += num_tokens[i];
      counts[i] = grown.size();
      drafts::Output{nodes + place, parents + place, buckets + place, survival + place}.write(grown);
    }
  });
}

// Merges two drafts, the second of which follows the first in the arrays; returns the number of nodes.
PROLEPSIS_EXPORT int64_t prolepsis_merge(int64_t first, int64_t second, const int64_t* tokens, const int64_t* parents, const double* survival,
                                         int64_t limit, int64_t* merged, int64_t* merged_parents, int64_t* buckets, double* survivals,
                                         int64_t* origins) {
  return face::call([&] {
    return merging::merge({tokens, parents, survival, first}, {tokens + first, parents + first, survival + first, second}, limit,
                          {merged, merged_parents, buckets, survivals}, origins);
  });
}
