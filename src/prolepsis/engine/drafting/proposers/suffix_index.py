"""Finds where the last tokens of a sequence occurred before: in itself, in a text given with it, or in earlier outputs.

The readable reference of `sources/suffix.h`, which serves where a compiler is; the drafts are the same.
Earlier outputs are those under the sequence's cache salt. A text that the sequence copies is followed (`followed`).

Both indexes are hash chains, as LZ77 coders use them, rather than a suffix tree or automaton. For each of a few n-gram
sizes a head points to the most recent place behind that n-gram and `previous` links each place to the one before it.
Measured on 8,000 tokens of prompts and answers, in plain Python: adding a token takes 0.8 us and 174 bytes in the local
index (a suffix automaton: 0.75 us, 464 bytes; an uncompressed counting trie of depth 24: 26 us, 5.6 kB) and 1.3 us and
60 bytes in the shared one, before it hashed as the compiled one does. The automaton is as fast, but gives one longest
match where a tree of drafts wants many places, recent ones first, at several lengths, and it cannot drop old outputs;
in a ring that costs nothing and the bound on memory is exact. What is given up: counts run over the most recent places
only.

A place is the index of the token that follows the matched n-gram.
"""

import hashlib
import os
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from prolepsis.engine.drafting.draft import ROOT, Draft, best_first
from prolepsis.engine.drafting.proposers.followed import FollowedPlace
from prolepsis.engine.drafting.proposers.prompt_lookup import continuation
from prolepsis.engine.sampling.noise import mix

MAX_MATCH = 48  # longer matches count as equal
SIZES = (4, 2, 1)
_QUOTA = {4: 6, 2: 5, 1: 5}  # places looked at per n-gram size; more found nothing more
_ENOUGH = 10  # places after which shorter n-grams are not looked at
SEPARATOR = -1
_COPIED = 8  # equal tokens that show that a text is being copied
LEFT_CONTEXT = 8  # prompt tokens kept before an output, so that its first tokens can be matched
_MASK, _STEP = 2**64 - 1, 0x9E3779B97F4A7C15
_PROCESS_KEY = os.urandom(16)


FOLLOWED, OWN, GIVEN, SHARED = range(4)
_WEIGHT = (1.0, 1.0, 0.5, 0.5)
_CONFIRMS = (2, 1, 1, 1)  # equal tokens that an accepted one counts for: it confirms where a followed text goes on


class SuffixContinuation(NamedTuple):
    """Continuation after an earlier occurrence of the sequence's last `match` tokens."""

    tokens: list[int]
    match: int
    kind: int  # whether the place is followed, or where it was found


class TextIndex:
    """Occurrences within one text. Keys are exact, memory is O(tokens)."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._heads: dict[int, dict[int, int]] = {size: {} for size in SIZES}
        self._previous: dict[int, list[int]] = {size: [] for size in SIZES}  # 0: none

    def extend(self, tokens: Sequence[int]) -> None:
        head1, head2, head4 = self._heads[1], self._heads[2], self._heads[4]
        previous1, previous2, previous4 = self._previous[1], self._previous[2], self._previous[4]
        w, x, y, z = _last4(self.tokens)
        for place, token in enumerate(tokens, len(self.tokens)):
            pair = y << 32 | z
            quad = w << 96 | x << 64 | pair
            previous1.append(head1.get(z, 0))
            previous2.append(head2.get(pair, 0))
            previous4.append(head4.get(quad, 0))
            head1[z] = head2[pair] = head4[quad] = place
            w, x, y, z = x, y, z, token + 1
        self.tokens += tokens

    def find(self, context: Sequence[int]) -> dict[int, int]:
        """Return places behind the last tokens of `context` with their matches: longest n-gram, latest place first."""
        w, x, y, z = _last4(context)
        keys = {1: z, 2: y << 32 | z, 4: w << 96 | x << 64 | y << 32 | z}
        matches: dict[int, int] = {}
        for size in SIZES:
            place, previous = self._heads[size].get(keys[size], 0), self._previous[size]
            quota = _QUOTA[size]
            while place and quota:
                if place not in matches:
                    matches[place] = _match(self.tokens, place, context, size)
                place, quota = previous[place], quota - 1
            if len(matches) >= _ENOUGH:
                break
        return matches


class SequenceIndex:
    """A sequence's own tokens, a text given with it, and the place that it follows in one of them.

    `searches_own`: drafts come from its own tokens too.
    """

    def __init__(self, searches_own: bool = True) -> None:
        self._own = TextIndex()
        self._given = TextIndex()
        self._place: FollowedPlace | None = None
        self._searches_own = searches_own

    def __len__(self) -> int:
        return len(self._own.tokens)

    @property
    def context(self) -> Sequence[int]:
        return self._own.tokens

    @property
    def goes_on(self) -> bool:
        """Whether it follows a place, and did with its last token."""
        return self._place is not None and self._place.goes_on

    def give(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text; a separator ends what was given before."""
        self._given.extend(tokens)

    def follow_given(self) -> None:
        """Expect the sequence to go on as the text begins."""
        self._place = FollowedPlace(self._given.tokens, 0, 0, is_own=False)

    def extend(self, tokens: Sequence[int]) -> None:
        known = len(self)
        self._own.extend(tokens)
        if self._place is not None:
            self._place.follow(self._own.tokens, known)

    def find(self, length: int) -> list[SuffixContinuation]:
        """Return continuations of up to `length` tokens, those of the place that is followed first."""
        tokens = self._own.tokens
        own = self._own.find(tokens) if self._searches_own else {}
        given = self._given.find(tokens)
        if not self.goes_on:
            self._choose(own, given)
        copies: list[SuffixContinuation] = []
        guesses = self._place.guesses(tokens) if self._place is not None else {}
        is_own = self._place is not None and self._place.is_own
        for place, match in guesses.items():
            seen = (own if is_own else given).pop(place, 0)
            copies.append(SuffixContinuation(self._read(place, length, is_own), max(match, seen), FOLLOWED))
        copies += [SuffixContinuation(self._read(place, length, True), match, OWN) for place, match in own.items()]
        copies += [SuffixContinuation(self._read(place, length, False), match, GIVEN) for place, match in given.items()]
        return copies

    def _choose(self, own: dict[int, int], given: dict[int, int]) -> None:
        """Follow the place with the longest match if that is long enough: what is there is being copied."""
        best, longest, is_own = 0, _COPIED - 1, True
        for places in (own, given):
            for place, match in places.items():
                if match > longest:
                    best, longest, is_own = place, match, places is own
        if best:
            text = self._own if is_own else self._given
            self._place = FollowedPlace(text.tokens, best, longest, is_own=is_own)

    def _read(self, place: int, length: int, is_own: bool) -> list[int]:
        """Return what follows a place: past the end of the sequence's own tokens they repeat."""
        if is_own:
            return continuation(self._own.tokens, place, length) if place < len(self) else []
        return _until_separator(self._given.tokens[place : place + length])


class SharedIndex:
    """Occurrences in past outputs, one ring of tokens for all cache salts; the oldest outputs are overwritten first.

    Every token carries a keyed hash of its cache salt, part of the n-gram hash and checked at every place found,
    so nothing of one salt is ever returned for another. Memory: at most `max_bytes`, touched as it fills.
    """

    BYTES_PER_TOKEN = 4 + 8 + len(SIZES) * 16

    def __init__(self, max_bytes: int) -> None:
        self.capacity = max(64, max_bytes // self.BYTES_PER_TOKEN)
        self._tokens = np.full(self.capacity, SEPARATOR, np.int32).data
        self._salts = np.zeros(self.capacity, np.int64).data
        self._heads = {size: np.zeros(self.capacity, np.int64).data for size in SIZES}
        self._previous = {size: np.zeros(self.capacity, np.int64).data for size in SIZES}
        self._end = 0  # absolute count of tokens written; place p lies at p % capacity

    @property
    def num_tokens(self) -> int:
        """Tokens that can be found now, separators included."""
        return min(self._end, self.capacity)

    @property
    def num_bytes(self) -> int:
        arrays = (self._tokens, self._salts, *self._heads.values(), *self._previous.values())
        return sum(array.nbytes for array in arrays)

    def add(self, tag: int, tokens: Sequence[int]) -> None:
        """Keep the tokens of an output for later sequences of the tag; of one longer than the ring, its end."""
        self._write(SEPARATOR, tag)
        sequence = tokens[-(self.capacity - 2) :]
        for i, token in enumerate(sequence):
            for size in SIZES:
                if size <= i:
                    slot = self._slot(tag, sequence[i - size : i])
                    self._previous[size][self._end % self.capacity] = self._heads[size][slot]
                    self._heads[size][slot] = self._end
                else:
                    self._previous[size][self._end % self.capacity] = 0
            self._write(token, tag)

    def find(self, tag: int, tokens: Sequence[int], length: int) -> list[SuffixContinuation]:
        """Return continuations of up to `length` tokens from outputs of the tag."""
        if not self._end:
            return []
        context = [*tokens[-MAX_MATCH:]]
        matches: dict[int, int] = {}
        for size in SIZES:
            if size <= len(context):
                self._walk(size, tag, context, matches)
            if len(matches) >= _ENOUGH:
                break
        return [SuffixContinuation(self._read(place, length), match, SHARED) for place, match in matches.items()]

    def _walk(self, size: int, tag: int, context: list[int], found: dict[int, int]) -> None:
        """Add places behind the last `size` tokens of the context to `found`, with their match lengths."""
        oldest = max(0, self._end - self.capacity)
        place = self._heads[size][self._slot(tag, context[-size:])]
        previous, quota = self._previous[size], _QUOTA[size]
        while place > oldest and quota:
            if place not in found and self._salts[place % self.capacity] == tag:
                match = self._match(place, context, oldest)
                if match >= size:
                    found[place] = match
            place, quota = previous[place % self.capacity], quota - 1

    def _slot(self, tag: int, ngram: Sequence[int]) -> int:
        """Return where the most recent place behind an n-gram is kept, as the compiled index does."""
        state = (tag + len(ngram)) & _MASK
        for token in ngram:
            state = mix((state + _STEP + token) & _MASK)
        return state % self.capacity

    def _match(self, place: int, context: list[int], oldest: int) -> int:
        tokens, capacity, match = self._tokens, self.capacity, 0
        longest = min(len(context), place - oldest)
        while match < longest and tokens[(place - 1 - match) % capacity] == context[-1 - match]:
            match += 1
        return match

    def _read(self, place: int, length: int) -> list[int]:
        start, length = place % self.capacity, min(length, self._end - place)
        tokens = self._tokens[start : start + length].tolist()
        if len(tokens) < length:
            tokens += self._tokens[: length - len(tokens)].tolist()
        return _until_separator(tokens)

    def _write(self, token: int, tag: int) -> None:
        slot = self._end % self.capacity
        self._tokens[slot] = token
        self._salts[slot] = tag
        self._end += 1


def _until_separator(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(SEPARATOR)] if SEPARATOR in tokens else tokens


def _last4(tokens: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the last four tokens, each plus one, 0 where there is none."""
    w, x, y, z = ([0, 0, 0, 0] + [t + 1 for t in tokens[-4:]])[-4:]
    return w, x, y, z


def _match(text: Sequence[int], place: int, context: Sequence[int], known: int) -> int:
    """Return how many tokens before `place` equal the context's last, given that `known` do; at most MAX_MATCH."""
    match, longest = known, min(MAX_MATCH, place, len(context))
    while match < longest and text[place - 1 - match] == context[-1 - match]:
        match += 1
    return match


def salt_tag(cache_salt: str) -> int:
    """Return a hash of a cache salt, keyed by the process."""
    digest = hashlib.blake2b(cache_salt.encode("utf-8", "surrogatepass"), key=_PROCESS_KEY, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


# Of a match of 0 to MAX_MATCH tokens.
_MATCH_CLASS = (0, 0, 1, 2, 3, 3, 4, 4, *[5] * 4, *[6] * 4, *[7] * 8, *[8] * 24, 9)
_MATCH_PRIOR = (0.15, 0.30, 0.45, 0.60, 0.70, 0.80, 0.88, 0.95, 0.97, 0.985)  # acceptance where all places agree
NUM_BUCKETS = len(_MATCH_PRIOR) * 4 * 2 * len(_WEIGHT)
_FLOOR = 0.005  # prior survival below which a node is not drafted

Request = tuple[SequenceIndex, Sequence[int], int, int]
"""Its index, the tokens that are new in it, the tag of its cache salt, and the most nodes."""
Nodes = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[int, ...]]
"""Tokens, parents, survivals and buckets of a draft."""
_Group = list[tuple[SuffixContinuation, float]]  # continuations with their weights


def propose(shared: SharedIndex | None, requests: Sequence[Request]) -> list[Nodes | None]:
    drafts: list[Nodes | None] = []
    for index, tokens, tag, limit in requests:
        index.extend(tokens)
        continuations = index.find(limit)
        if shared is not None:
            continuations += shared.find(tag, index.context, limit)
        draft = _tree(continuations, limit) if continuations else None
        drafts.append((draft.tokens, draft.parents, draft.survival, draft.buckets) if draft else None)
    return drafts


def _tree(continuations: Sequence[SuffixContinuation], limit: int) -> Draft | None:
    """Return the `limit` likeliest nodes of the trie of continuations, best first."""
    group = [(c, _WEIGHT[c.kind] * float(1 << min(c.match, MAX_MATCH))) for c in continuations]
    nodes: list[tuple[int, int, float, int]] = []  # as `best_first` takes them
    heap: list[tuple[float, int, int, int, int, int, _Group]] = []
    order = count()
    parent, depth, alive = ROOT, 0, 1.0
    while True:
        for token, share, followers in _split(group, depth):
            match_class = _MATCH_CLASS[min(max(c.match + depth * _CONFIRMS[c.kind] for c, _ in followers), MAX_MATCH)]
            share_class = 3 if share > 0.95 else 2 if share > 0.6 else 1 if share > 0.25 else 0
            rate, kind = _MATCH_PRIOR[match_class] * share, followers[0][0].kind  # the place that is followed is first
            bucket = ((match_class * 4 + share_class) * 2 + (len(followers) > 1)) * len(_WEIGHT) + kind
            if alive * rate >= _FLOOR:
                heappush(heap, (-alive * rate, next(order), token, parent, bucket, depth + 1, followers))
        if not heap or len(nodes) == limit:
            break
        negative, _, token, parent, bucket, depth, group = heappop(heap)
        alive = -negative
        nodes.append((token, parent, alive, bucket))
        parent = len(nodes) - 1
    return best_first(nodes, "suffix") if nodes else None


def _split(group: _Group, depth: int) -> list[tuple[int, float, _Group]]:
    """Return each next token with its share of the group's weight and the continuations that continue with it."""
    by_token: dict[int, _Group] = {}
    total = 0.0
    for member in group:
        tokens = member[0].tokens
        if depth < len(tokens):
            by_token.setdefault(tokens[depth], []).append(member)
            total += member[1]
    if len(by_token) == 1:
        return [(token, 1.0, followers) for token, followers in by_token.items()]
    return [(token, sum(w for _, w in followers) / total, followers) for token, followers in by_token.items()]
