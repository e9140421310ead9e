"""Pages for tokens that are drafted and forgotten: behind those of the pool, so that no committed slot is written."""

from collections.abc import Sequence

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.models.protocol import KVCache


def scratch_pages(max_nodes: int) -> int:
    """Return the pages that drafting `max_nodes` tokens for one sequence takes: it may begin at the end of one."""
    return -(-(PAGE_SIZE - 1 + max_nodes) // PAGE_SIZE)


class Scratch:
    """Scratch of `max_sequences` sequences in `cache`, from `first_page` on; each has room for `max_nodes` tokens.

    A sequence's page that is not full is copied in front of its drafted tokens.
    """

    def __init__(self, cache: KVCache, *, first_page: int, max_sequences: int, max_nodes: int) -> None:
        size = scratch_pages(max_nodes)
        end = first_page + size * max_sequences
        assert cache.num_pages >= end, f"a cache of {cache.num_pages} pages; needed: {end}"
        self._cache = cache
        self._pages = [list(range(first, first + size)) for first in range(first_page, end, size)]

    @property
    def max_sequences(self) -> int:
        return len(self._pages)

    def begin(self, place: int, pages: Sequence[int], num_slots: int) -> list[int]:
        """Return the pages to draft in behind the first `num_slots` slots of `pages`: its full ones, then scratch.

        `place` numbers the sequences of a call, 0 to `max_sequences` - 1.
        """
        full, rest = divmod(num_slots, PAGE_SIZE)
        scratch = self._pages[place]
        if rest:
            self._cache.copy_page(pages[full], scratch[0])
        return [*pages[:full], *scratch]
