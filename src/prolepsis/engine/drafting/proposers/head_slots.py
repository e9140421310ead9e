"""Owns which slots of which sequence a draft head has written, and the hidden states that wait to be written.

Pages outlive heads: the target's prefix index finds pages that were filled before a head was loaded, requests continue
while heads are replaced, and the states of a request that may not draft are not given. So each page is marked with the
token that its slots are valid from: the page boundary from which the head has seen all tokens up to there; or as stale.
A sequence whose last page is stale starts over at the next page boundary: to the head, whose positions are relative to
that, this is a shorter context.

Full pages of a sequence that is not asked for drafts are not written but deferred, until it is, or a sequence that
shares the page, and writes them.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.drafting.proposer import HiddenStates, SequenceView

MAX_DEFERRED_BYTES = 64 << 20


class DeferredFeatures:
    """Features of full pages that are not written yet, by page, each [page size, feature_size] bfloat16.

    The page that was unused for longest is given up first, and the end of a prefix before its front.
    """

    def __init__(self, page_bytes: int, max_bytes: int) -> None:
        self._page_bytes, self._max_bytes = page_bytes, max_bytes
        self._features: dict[int, Tensor] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._features

    def put(self, pages: Sequence[int], features: Iterable[Tensor]) -> list[int]:
        """Keep the features of the pages, in their order; return the pages given up for that."""
        self._features.update(reversed(list(zip(pages, features, strict=True))))
        given_up: list[int] = []
        while len(self._features) * self._page_bytes > self._max_bytes:
            given_up.append(next(iter(self._features)))
            del self._features[given_up[-1]]
        return given_up

    def touch(self, pages: Sequence[int]) -> bool:
        """Return whether any of the pages is kept; those are given up last."""
        kept = [page for page in reversed(pages) if page in self._features] if self._features else []
        for page in kept:
            self._features[page] = self._features.pop(page)
        return bool(kept)

    def pop(self, page: int) -> Tensor | None:
        return self._features.pop(page, None)

    @property
    def num_bytes(self) -> int:
        return len(self._features) * self._page_bytes


_STALE = -1


@dataclass(slots=True)
class HeadState:
    """Slots `valid_from : written` of a sequence hold the head's K/V, except for deferred ones.

    `waiting` are features from token `written - 1` on.
    """

    valid_from: int  # first token the head knows, at a page boundary
    written: int
    waiting: list[Tensor] = field(default_factory=list)  # each [n, feature_size] bfloat16
    has_deferred: bool = False  # slots before `written` may be deferred
    is_asked: bool = False  # a draft was asked for since the last page became full
    last_page: int = -1  # page of the last token whose features are known
    num_waiting: int = field(init=False)  # tokens in `waiting`: counted, as asking every tensor takes time

    def __post_init__(self) -> None:
        self.num_waiting = sum(len(part) for part in self.waiting)

    @property
    def seen(self) -> int:
        """Tokens whose features are known: slot `seen` can be written once its token is known."""
        return self.written - 1 + self.num_waiting

    def wait(self, features: Tensor, count: int) -> None:  # [count, feature_size]
        self.waiting.append(features)
        self.num_waiting += count

    def pages(self, sequence: SequenceView) -> list[int]:
        return list(sequence.pages[self.valid_from // PAGE_SIZE :])

    def maybe_deferred(self, sequence: SequenceView) -> Sequence[int]:
        """Return the sequence's pages before `written` whose slots may be deferred."""
        return sequence.pages[self.valid_from // PAGE_SIZE : self.written // PAGE_SIZE] if self.has_deferred else ()

    def take(self, count: int) -> Tensor:  # [count, feature_size]
        """Return the features of the next `count` slots to write and advance over them."""
        taken = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
        self.waiting = []
        if count < self.num_waiting:  # not in most steps, where each operation on a tensor takes 20 us
            self.waiting = [taken[count:].clone()]  # a copy, so that the taken part is freed
            taken = taken[:count]
        self.num_waiting -= count
        self.written += count
        return taken

    def cut(self, seen: int) -> "HeadState | None":
        """Return it as it was when `seen` tokens were; None if that is not known any more."""
        if not self.written <= seen <= self.seen:
            return None
        joined = torch.cat(self.waiting)[: seen - self.written + 1]
        return replace(self, waiting=[joined])


class HeadSlots:
    """States of live sequences. The last features of each page are kept, so a prefix-cache hit can continue from it."""

    def __init__(self, num_pages: int, feature_size: int, max_deferred_bytes: int = MAX_DEFERRED_BYTES) -> None:
        self._states: dict[str, HeadState] = {}
        self._valid_from = array("q", [_STALE]) * num_pages
        self._full = bytearray(num_pages)  # pages all of whose tokens were seen: written, if they are not deferred
        self._size = (num_pages, feature_size)
        self._tails: Tensor | None = None  # [num_pages, feature_size], made where the features are
        self._deferred = DeferredFeatures(2 * feature_size * PAGE_SIZE, max_deferred_bytes)
        self._forks: dict[int, HeadState] = {}
        """By page that was copied, and by its copy: the state of the sequence it was copied from."""

    def add(self, new: HiddenStates) -> HeadState | None:
        """Process the features of a sequence's next tokens; return its state, None if it has none yet."""
        if self._tails is None:
            self._tails = new.features.new_zeros(self._size)
        state = self._states.get(new.sequence.key)
        if state is None or not self._goes_on(state, new):
            state = self._resumed(new, self._tails) or self._fresh(new, self._tails)
            if state is None:
                self._states.pop(new.sequence.key, None)
            else:
                self._states[new.sequence.key] = state
        pages, end = new.sequence.pages, new.start + len(new.tokens)
        if state is None:
            self._fill(pages, new.start, end, _STALE)
            return None
        first = max(new.start, state.valid_from)
        self._fill(pages, new.start, first, _STALE)
        self._fill(pages, first, end, state.valid_from)
        state.wait(new.features if first == new.start else new.features[first - new.start :], end - first)
        state.last_page = pages[(end - 1) // PAGE_SIZE]
        for position in range(first + (PAGE_SIZE - 1 - first) % PAGE_SIZE, end, PAGE_SIZE):  # the last ones of pages
            page = pages[position // PAGE_SIZE]
            self._tails[page], self._full[page] = new.features[position - new.start], True
        return state

    def defer(self, state: HeadState, sequence: SequenceView) -> None:
        """Keep the features of a state's full pages, instead of writing them, for a sequence that drafts from there.

        `written` is then the end of these pages; it has to be at a page boundary before.
        """
        first, end = state.written, (state.seen // PAGE_SIZE) * PAGE_SIZE
        features, state.has_deferred = state.take(end - first), True
        parts = [features[at : at + PAGE_SIZE].clone() for at in range(0, end - first, PAGE_SIZE)]
        for page in self._deferred.put(sequence.pages[first // PAGE_SIZE : end // PAGE_SIZE], parts):
            self._valid_from[page] = _STALE

    def take(self, state: HeadState, sequence: SequenceView, end: int) -> tuple[int, Tensor]:
        """Return the first slot to write, deferred ones included, and the features for those up to `end`."""
        pages = state.maybe_deferred(sequence)
        deferred = [features for page in pages if (features := self._deferred.pop(page)) is not None]
        state.has_deferred = False
        state.waiting = [*deferred, *state.waiting]
        state.num_waiting += PAGE_SIZE * len(deferred)
        state.written -= PAGE_SIZE * len(deferred)
        return state.written, state.take(end - state.written)

    def miss(self, sequence: SequenceView, start: int, end: int) -> None:
        """Mark the tokens `start : end` of a sequence, which stand in its pages and are not given, as unknown."""
        page, offset = divmod(start, PAGE_SIZE)
        is_inside = offset > 0 and offset + end - start <= PAGE_SIZE and sequence.key not in self._states
        if is_inside and self._valid_from[sequence.pages[page]] == _STALE:
            return  # marked before, as for each token of a sequence that rests
        self._fill(sequence.pages, start, end, _STALE)
        self._states.pop(sequence.key, None)

    def fail(self, sequence: SequenceView) -> None:
        """Forget a sequence whose slots may be half written, so that none begins from them."""
        state = self._states.pop(sequence.key, None)
        for page in state.pages(sequence) if state is not None else ():
            self._valid_from[page] = _STALE
            self._deferred.pop(page)

    def get(self, sequence: SequenceView) -> HeadState | None:
        """Return the state of a sequence with slots to write up to its last token, None of any other."""
        state, length = self._states.get(sequence.key), len(sequence.tokens)
        if state is None or state.seen != length - 1 or state.written >= length:
            return None
        return state if self._holds(state, sequence) else None

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the features kept for each page (bfloat16), of the marks, and of what is deferred now."""
        num_pages, feature_size = self._size
        return num_pages * (2 * feature_size + self._valid_from.itemsize + 1) + self._deferred.num_bytes

    def drop(self, key: str) -> None:
        self._states.pop(key, None)

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page's last features and its valid_from; a deferred page has nothing to copy."""
        self._deferred.pop(target)
        self._valid_from[target] = self._valid_from[source] if source not in self._deferred else _STALE
        self._full[target] = self._full[source]
        if self._tails is not None:
            self._tails[target] = self._tails[source]
        state = next((state for state in self._states.values() if state.last_page == source), self._forks.get(source))
        if state is not None:
            waiting = [torch.cat(state.waiting)] if state.waiting else []
            self._forks[source] = self._forks[target] = replace(state, waiting=waiting)

    def _goes_on(self, state: HeadState, new: HiddenStates) -> bool:
        """Whether a state belongs to the tokens before it: not after preemption, a fork, or a time without states."""
        start, pages = new.start, new.sequence.pages
        if state.seen != start or (start > 0 and pages[(start - 1) // PAGE_SIZE] != state.last_page):
            return False
        return self._holds(state, new.sequence)

    def _holds(self, state: HeadState, sequence: SequenceView) -> bool:
        """Whether no page that it left deferred was given up."""
        return all(self._valid_from[page] != _STALE for page in state.maybe_deferred(sequence))

    def _fill(self, pages: Sequence[int], start: int, end: int, valid_from: int) -> None:
        """Mark the pages that the tokens `start : end` are put into; what was there before is forgotten."""
        for page in pages[start // PAGE_SIZE : -(-end // PAGE_SIZE)] if end > start else ():
            self._valid_from[page], self._full[page] = valid_from, False
            self._deferred.pop(page)
            self._forks.pop(page, None)

    def _resumed(self, new: HiddenStates, tails: Tensor) -> HeadState | None:
        """Return a state that continues earlier pages, or inside a page the sequence that it was copied from."""
        start, pages = new.start, new.sequence.pages
        valid_from = self._common_start(pages, start)
        if valid_from == _STALE:
            return None
        before = pages[valid_from // PAGE_SIZE : -(-start // PAGE_SIZE)]
        if start % PAGE_SIZE == 0:
            return HeadState(valid_from, start, [_before(new, tails)], self._deferred.touch(before))
        if self._full[before[-1]] and not self._deferred.touch(before):
            return HeadState(valid_from, start, [_before(new, tails)])
        twin = self._forks.get(before[-1])
        return twin.cut(start) if twin is not None and twin.valid_from == valid_from else None

    def _fresh(self, new: HiddenStates, tails: Tensor) -> HeadState | None:
        start, end = new.start, new.start + len(new.tokens)
        valid_from = -(-start // PAGE_SIZE) * PAGE_SIZE
        if valid_from >= end:
            return None
        last = new.features[valid_from - start - 1][None] if valid_from > start else tails.new_zeros(1, tails.shape[1])
        return HeadState(valid_from, valid_from, [last])

    def _common_start(self, pages: Sequence[int], start: int) -> int:
        """Return the valid_from of the slots before token `start`, if it is the same for all of them."""
        if start == 0:
            return 0
        valid_from, last = self._valid_from[pages[(start - 1) // PAGE_SIZE]], (start - 1) // PAGE_SIZE
        known = valid_from != _STALE and all(
            self._valid_from[page] == valid_from for page in pages[valid_from // PAGE_SIZE : last]
        )
        return valid_from if known else _STALE


def _before(new: HiddenStates, tails: Tensor) -> Tensor:  # [1, feature_size]
    """Return the features of the token before `new`, whose slots before are in pages that others wrote.

    Zeros at slot 0, and inside a page, if they are not known.
    """
    page, offset = divmod(new.start, PAGE_SIZE)
    known = page > 0 and offset == 0
    return tails[new.sequence.pages[page - 1]][None] if known else tails.new_zeros(1, tails.shape[1])
