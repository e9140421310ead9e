"""Which slots of which sample a draft head has written, and the target's hidden states that wait to be.

Pages outlive heads: the target's prefix index finds pages that were filled before a head was put in, and requests go on
while heads are exchanged. So each page is marked as this head's own or not, and a sample any of whose pages is not has
no slots: its hidden states are let go, and what it fills is marked as foreign too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prolepsis.models.protocol import PAGE_SIZE
from prolepsis.spec.features import Shown
from prolepsis.spec.proposer import SampleView


@dataclass(slots=True)
class HeadState:
    """Slots `0 : written` of a sample hold the head's K/V; `waiting` are features from token `written - 1` on."""

    written: int
    waiting: list[Tensor] = field(default_factory=list)  # each [n, feature_size] bfloat16

    @property
    def seen(self) -> int:
        """Tokens whose features are known: slot `seen` can be written once its token is known."""
        return self.written - 1 + sum(len(part) for part in self.waiting)

    def take(self, count: int) -> Tensor:  # [count, feature_size]
        """Return the features of the next `count` slots to write and advance over them."""
        joined = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
        self.waiting = [joined[count:]]
        self.written += count
        return joined[:count]


class HeadSlots:
    """States of live samples. The last features of each page are kept, so that a prefix-cache hit can go on from it."""

    def __init__(self, num_pages: int, feature_size: int) -> None:
        self._states: dict[str, HeadState] = {}
        self._own = bytearray(num_pages)
        self._size = (num_pages, feature_size)
        self._tails: Tensor | None = None  # [num_pages, feature_size], made where the features are

    def add(self, shown: Shown) -> HeadState | None:
        """Take in the features of a sample's next tokens; return its state, None where slots before are foreign."""
        if self._tails is None:
            self._tails = shown.features.new_zeros(self._size)
        state = self._states.get(shown.sample.key)
        if state is None or state.seen != shown.start:  # new, preempted, or forked from a sibling
            state = self._begin(shown, self._tails)
        end = shown.start + len(shown.tokens)
        for page in shown.sample.pages[shown.start // PAGE_SIZE : -(-end // PAGE_SIZE)]:
            self._own[page] = state is not None
        if state is not None:
            state.waiting.append(shown.features)
            for position in _page_ends(shown.start, len(shown.tokens)):
                self._tails[shown.sample.pages[position // PAGE_SIZE]] = shown.features[position - shown.start]
        return state

    def get(self, sample: SampleView) -> HeadState | None:
        """Return the state of a sample with slots to write up to its last token, None of any other."""
        state, length = self._states.get(sample.key), len(sample.tokens)
        return state if state is not None and state.seen == length - 1 and state.written < length else None

    @property
    def num_bytes(self) -> int:
        """Of the features kept for each page, bfloat16, and the marks."""
        num_pages, feature_size = self._size
        return num_pages * (2 * feature_size + 1)

    def drop(self, key: str) -> None:
        """Forget a sample; unknown ones are ignored."""
        self._states.pop(key, None)

    def copy_page(self, source: int, target: int) -> None:
        """The page was copied: so are its last features, and whose it is."""
        self._own[target] = self._own[source]
        if self._tails is not None:
            self._tails[target] = self._tails[source]

    def _begin(self, shown: Shown, tails: Tensor) -> HeadState | None:
        """Return a state that goes on from the pages before, None where one of them is not this head's."""
        before = shown.sample.pages[: -(-shown.start // PAGE_SIZE)]
        if not all(self._own[page] for page in before):
            self._states.pop(shown.sample.key, None)
            return None
        state = HeadState(shown.start, [_before(shown, tails)])
        self._states[shown.sample.key] = state
        return state


def _before(shown: Shown, tails: Tensor) -> Tensor:  # [1, feature_size]
    """Return the features of the token before `shown`, whose slots before are in pages that others wrote.

    Zeros at slot 0, and inside a page, where they are not known.
    """
    page, offset = divmod(shown.start, PAGE_SIZE)
    known = page > 0 and offset == 0
    return tails[shown.sample.pages[page - 1]][None] if known else tails.new_zeros(1, tails.shape[1])


def _page_ends(start: int, count: int) -> Sequence[int]:
    """Return the last positions of pages among `start : start + count`."""
    first = start + (PAGE_SIZE - 1 - start) % PAGE_SIZE
    return range(first, start + count, PAGE_SIZE)
