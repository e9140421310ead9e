"""Hidden states of full pages that a draft head has not written: kept, within a bound, for whoever drafts from them."""

from collections.abc import Iterable, Sequence

from torch import Tensor

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
