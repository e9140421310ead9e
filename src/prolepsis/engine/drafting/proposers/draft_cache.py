"""Owns the K/V pages of a draft model, by sequence; the longest unused are evicted, so no request can fail here."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from prolepsis.core.page_size import PAGE_SIZE


@dataclass(slots=True)
class DraftState:
    """One sequence's pages and the tokens whose K/V they hold, in order."""

    pages: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    num_confirmed: int = 0
    """Leading `written` tokens known to equal the sequence's."""

    def reuse(self, tokens: Sequence[int]) -> int:
        """Drop tokens that were drafted but not committed; return how many of `tokens` are cached, never all."""
        count, known = self.num_confirmed, min(len(self.written), len(tokens) - 1)
        while count < known and self.written[count] == tokens[count]:
            count += 1
        self.num_confirmed = min(count, known)
        del self.written[self.num_confirmed :]
        return self.num_confirmed


class DraftCache:
    """States of live sequences over a fixed number of pages; the longest unused gives way."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages))
        self._states: OrderedDict[str, DraftState] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def claim(self, key: str, num_slots: int, keep: frozenset[str]) -> DraftState | None:
        """Return the sequence's state with `num_slots` slots, evicting others than `keep`; None if there is no room."""
        state = self._states.setdefault(key, DraftState())
        self._states.move_to_end(key)
        missing = -(-num_slots // PAGE_SIZE) - len(state.pages)
        while missing > len(self._free):
            victim = next((k for k in self._states if k != key and k not in keep), None)
            if victim is None:
                return None
            self.drop(victim)
        for _ in range(missing):
            state.pages.append(self._free.pop())
        return state

    def drop(self, key: str) -> None:
        """Free a sequence's pages; unknown keys are ignored."""
        state = self._states.pop(key, None)
        if state:
            self._free += state.pages
