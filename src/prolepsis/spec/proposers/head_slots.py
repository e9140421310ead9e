"""Hidden states of full pages that a draft head has not written: kept, within a bound, for whoever drafts from them."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from prolepsis.models.protocol import PAGE_SIZE
from prolepsis.spec.proposer import SequenceView, Shown

MAX_BYTES = 64 << 20


class Parked:
    """By page, the features that its slots are written from, each [page size, feature_size] bfloat16.

    What is given up first is what nobody began from for longest, and the end of a prefix before its front.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._features: dict[int, Tensor] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._features

    def put(self, pages: Sequence[int], features: Iterable[Tensor]) -> list[int]:
        """Keep what the pages, in their order, are written from; return the pages given up for that."""
        self._features.update(reversed(list(zip(pages, features, strict=True))))
        given_up: list[int] = []
        while len(self._features) * self._page_bytes > MAX_BYTES:
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
        """Return what a page is written from, and keep it no longer."""
        return self._features.pop(page, None)

    @property
    def num_bytes(self) -> int:
        return len(self._features) * self._page_bytes


_FOREIGN = -1


@dataclass(slots=True)
class HeadState:
    """Slots `base : written` of a sequence hold the head's K/V, but for parked ones.

    `waiting` are features from token `written - 1` on.
    """

    base: int
    """First token the head knows, at a page boundary."""
    written: int
    waiting: list[Tensor] = field(default_factory=list)  # each [n, feature_size] bfloat16
    has_parked: bool = False
    """Slots before `written` may be parked."""
    last_page: int = -1
    """Page of the last token whose features are known."""

    @property
    def seen(self) -> int:
        """Tokens whose features are known: slot `seen` can be written once its token is known."""
        return self.written - 1 + sum(len(part) for part in self.waiting)

    def pages(self, sequence: SequenceView) -> list[int]:
        """Return the sequence's pages from the base on."""
        return list(sequence.pages[self.base // PAGE_SIZE :])

    def maybe_parked(self, sequence: SequenceView) -> Sequence[int]:
        """Return the sequence's pages before `written` whose slots may be parked."""
        return sequence.pages[self.base // PAGE_SIZE : self.written // PAGE_SIZE] if self.has_parked else ()

    def take(self, count: int) -> Tensor:  # [count, feature_size]
        """Return the features of the next `count` slots to write and advance over them."""
        joined = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
        self.waiting = [joined[count:].clone()]  # what is left holds on to nothing more
        self.written += count
        return joined[:count]

    def cut(self, seen: int) -> "HeadState | None":
        """Return it as it was when `seen` tokens were; None where that is not known any more."""
        if not self.written <= seen <= self.seen:
            return None
        joined = torch.cat(self.waiting)[: seen - self.written + 1]
        return replace(self, waiting=[joined])


class HeadSlots:
    """States of live sequences. The last features of each page are kept, so a prefix-cache hit can go on from it."""

    def __init__(self, num_pages: int, feature_size: int) -> None:
        self._states: dict[str, HeadState] = {}
        self._bases = array("q", [_FOREIGN]) * num_pages
        self._full = bytearray(num_pages)  # pages all of whose tokens were seen: written, if they are not parked
        self._size = (num_pages, feature_size)
        self._tails: Tensor | None = None  # [num_pages, feature_size], made where the features are
        self._parked = Parked(2 * feature_size * PAGE_SIZE)
        self._forks: dict[int, HeadState] = {}
        """By page that was copied, and by its copy: the state of the sequence it was copied from."""

    def add(self, shown: Shown) -> HeadState | None:
        """Take in the features of a sequence's next tokens; return its state, None where it has none yet."""
        if self._tails is None:
            self._tails = shown.features.new_zeros(self._size)
        state = self._states.get(shown.sequence.key)
        if state is None or not self._goes_on(state, shown):
            state = self._begin(shown, self._tails)
        pages, end = shown.sequence.pages, shown.start + len(shown.tokens)
        if state is None:
            self._fill(pages, shown.start, end, _FOREIGN)
            return None
        first = max(shown.start, state.base)
        self._fill(pages, shown.start, first, _FOREIGN)
        self._fill(pages, first, end, state.base)
        state.waiting.append(shown.features[first - shown.start :])
        state.last_page = pages[(end - 1) // PAGE_SIZE]
        for position in _page_ends(first, end - first):
            page = pages[position // PAGE_SIZE]
            self._tails[page], self._full[page] = shown.features[position - shown.start], True
        return state

    def park(self, state: HeadState, sequence: SequenceView) -> None:
        """Keep the features of a state's full pages for whoever drafts from these pages, instead of writing them.

        `written` is then the end of these pages; it has to be at a page boundary before.
        """
        first, end = state.written, (state.seen // PAGE_SIZE) * PAGE_SIZE
        features, state.has_parked = state.take(end - first), True
        parts = [features[at : at + PAGE_SIZE].clone() for at in range(0, end - first, PAGE_SIZE)]
        for page in self._parked.put(sequence.pages[first // PAGE_SIZE : end // PAGE_SIZE], parts):
            self._bases[page] = _FOREIGN

    def take(self, state: HeadState, sequence: SequenceView, end: int) -> tuple[int, Tensor]:
        """Return the first slot to write, parked ones included, and the features for those up to `end`."""
        pages = state.maybe_parked(sequence)
        parked = [features for page in pages if (features := self._parked.pop(page)) is not None]
        state.has_parked = False
        state.waiting = [*parked, *state.waiting]
        state.written -= PAGE_SIZE * len(parked)
        return state.written, state.take(end - state.written)

    def miss(self, sequence: SequenceView, start: int, end: int) -> None:
        """The tokens `start : end` of a sequence stand in its pages and are not shown."""
        self._fill(sequence.pages, start, end, _FOREIGN)
        self._states.pop(sequence.key, None)

    def fail(self, sequence: SequenceView) -> None:
        """Forget a sequence whose slots may be half written, and let nobody begin from them."""
        state = self._states.pop(sequence.key, None)
        for page in state.pages(sequence) if state is not None else ():
            self._bases[page] = _FOREIGN
            self._parked.pop(page)

    def get(self, sequence: SequenceView) -> HeadState | None:
        """Return the state of a sequence with slots to write up to its last token, None of any other."""
        state, length = self._states.get(sequence.key), len(sequence.tokens)
        if state is None or state.seen != length - 1 or state.written >= length:
            return None
        return state if self._holds(state, sequence) else None

    @property
    def num_bytes(self) -> int:
        """Of the features kept for each page, bfloat16, the marks, and what is parked now."""
        num_pages, feature_size = self._size
        return num_pages * (2 * feature_size + self._bases.itemsize + 1) + self._parked.num_bytes

    def drop(self, key: str) -> None:
        """Forget a sequence; unknown ones are ignored."""
        self._states.pop(key, None)

    def copy_page(self, source: int, target: int) -> None:
        """The page was copied: so are its last features, and its base; a parked page has nothing to copy."""
        self._parked.pop(target)
        self._bases[target] = self._bases[source] if source not in self._parked else _FOREIGN
        self._full[target] = self._full[source]
        if self._tails is not None:
            self._tails[target] = self._tails[source]
        state = next((state for state in self._states.values() if state.last_page == source), self._forks.get(source))
        if state is not None:
            self._forks[source] = self._forks[target] = replace(state, waiting=[torch.cat(state.waiting)])

    def _goes_on(self, state: HeadState, shown: Shown) -> bool:
        """Whether a state is that of the tokens before: not of one preempted, forked, or not shown for a while."""
        start, pages = shown.start, shown.sequence.pages
        if state.seen != start or (start > 0 and pages[(start - 1) // PAGE_SIZE] != state.last_page):
            return False
        return self._holds(state, shown.sequence)

    def _holds(self, state: HeadState, sequence: SequenceView) -> bool:
        """Whether no page that it left parked was given up."""
        return all(self._bases[page] != _FOREIGN for page in state.maybe_parked(sequence))

    def _fill(self, pages: Sequence[int], start: int, end: int, base: int) -> None:
        """Set the base of the pages that the tokens `start : end` are put into; nothing is known of what was there."""
        for page in pages[start // PAGE_SIZE : -(-end // PAGE_SIZE)] if end > start else ():
            self._bases[page], self._full[page] = base, False
            self._parked.pop(page)
            self._forks.pop(page, None)

    def _begin(self, shown: Shown, tails: Tensor) -> HeadState | None:
        """Return a state that goes on from the slots before, or from the next page on; None where that is not shown."""
        state = self._resumed(shown, tails) or self._anew(shown, tails)
        if state is None:
            self._states.pop(shown.sequence.key, None)
        else:
            self._states[shown.sequence.key] = state
        return state

    def _resumed(self, shown: Shown, tails: Tensor) -> HeadState | None:
        """Return a state that goes on from pages before, or inside a page from the sequence that it was copied from."""
        start, pages = shown.start, shown.sequence.pages
        base = self._base(pages, start)
        if base == _FOREIGN:
            return None
        before = pages[base // PAGE_SIZE : -(-start // PAGE_SIZE)]
        if start % PAGE_SIZE == 0:
            return HeadState(base, start, [_before(shown, tails)], self._parked.touch(before))
        if self._full[before[-1]] and not self._parked.touch(before):
            return HeadState(base, start, [_before(shown, tails)])
        twin = self._forks.get(before[-1])
        return twin.cut(start) if twin is not None and twin.base == base else None

    def _anew(self, shown: Shown, tails: Tensor) -> HeadState | None:
        start, end = shown.start, shown.start + len(shown.tokens)
        base = -(-start // PAGE_SIZE) * PAGE_SIZE
        if base >= end:
            return None
        last = shown.features[base - start - 1][None] if base > start else tails.new_zeros(1, tails.shape[1])
        return HeadState(base, base, [last])

    def _base(self, pages: Sequence[int], start: int) -> int:
        """Return the base of the slots before token `start`, where all of them are of one."""
        if start == 0:
            return 0
        base, last = self._bases[pages[(start - 1) // PAGE_SIZE]], (start - 1) // PAGE_SIZE
        known = base != _FOREIGN and all(self._bases[page] == base for page in pages[base // PAGE_SIZE : last])
        return base if known else _FOREIGN


def _before(shown: Shown, tails: Tensor) -> Tensor:  # [1, feature_size]
    """Return the features of the token before `shown`, whose slots before are in pages that others wrote.

    Zeros at slot 0, and inside a page, where they are not known.
    """
    page, offset = divmod(shown.start, PAGE_SIZE)
    known = page > 0 and offset == 0
    return tails[shown.sequence.pages[page - 1]][None] if known else tails.new_zeros(1, tails.shape[1])


def _page_ends(start: int, count: int) -> Sequence[int]:
    """Return the last positions of pages among `start : start + count`."""
    first = start + (PAGE_SIZE - 1 - start) % PAGE_SIZE
    return range(first, start + count, PAGE_SIZE)
