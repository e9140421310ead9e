"""Gives pages to sequences, shares and publishes them, and takes them back."""

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from prolepsis.engine.kept_prefixes import LEAST_TOKENS, KeptPrefixes
from prolepsis.engine.kv.pages import PagePool, extend_hashes
from prolepsis.engine.request import SequenceState

CALM_STEPS = 32  # steps in a row in which sequences could have done without lent pages, after which these go back

log = structlog.get_logger(__name__)


class Lender(Protocol):
    """A proposer whose cache is in the memory of the pages that can be lent."""

    name: str

    def lend(self) -> bool:
        """Leave the memory, and draft nothing; False if it is in use."""

    def take_back(self) -> None: ...


class Paging:
    """Moves pages between the pool and sequences; what they store is copied and cleared as in a `KVCache`."""

    def __init__(
        self,
        pool: PagePool,
        copy_page: Callable[[int, int], None],
        clear_page: Callable[[int], None],
        kept: KeptPrefixes | None = None,
        lender: Lender | None = None,
    ) -> None:
        self.pool = pool
        self._lender = lender
        self._unclean = set[int]()  # lent pages that hold what the lender wrote, which may be no numbers
        self._num_calm = 0
        self.kept = kept  # keeps pages of prompts over restarts
        self._copy_page = copy_page
        self._clear_page = clear_page

    def borrow(self) -> bool:
        """Have the lender's memory as pages; False if there is none, or it cannot be had now."""
        if self._lender is None or self.pool.num_lent or not self._lender.lend():
            return False
        self._unclean, self._num_calm = set(self.pool.lend()), 0
        log.info("draft_memory_lent", proposer=self._lender.name, pages=self.pool.num_lent)
        return True

    def settle(self, running: Sequence[SequenceState]) -> None:
        """Give lent pages back once sequences have needed none for some steps; `running`: all that hold pages.

        What they still hold there is copied: the lender does not wait for their end.
        """
        pool = self.pool
        if self._lender is None or not pool.num_lent:
            return
        self._num_calm = self._num_calm + 1 if pool.num_unlent >= len(running) else 0
        if pool.num_referenced and self._num_calm < CALM_STEPS:
            return
        moved: dict[int, int] = {}
        for sequence in running:
            for i, page in enumerate(sequence.pages):
                if pool.is_lent(page):
                    if page in moved:
                        pool.share([moved[page]])
                    else:
                        [moved[page]] = pool.allocate(1)
                        self._copy_page(page, moved[page])
                    sequence.pages[i] = moved[page]
                    pool.release([page])
        pool.take_back()
        self._lender.take_back()
        log.info("draft_memory_returned", proposer=self._lender.name)

    def start(self, sequence: SequenceState, reserve: int, *, lent: bool = False) -> bool:
        """Give a sequence without pages all that its tokens need, computed ones if the index has them.

        At least one token is left to compute. Returns False, with nothing changed, if fewer than `reserve` pages
        would stay available, or without `lent` if a lent one would be needed.
        """
        size, pool = self.pool.page_size, self.pool
        assert sequence.num_computed == len(sequence.pages) == 0, "only a sequence without pages is started"
        reusable = sequence.num_reusable // size if pool.prefix_cache else 0
        extend_hashes(sequence.hashes, sequence.tokens, size, sequence.cache_salt, reusable)
        pages = pool.match(sequence.hashes[:reusable])
        missing = pool.pages_for(len(sequence.tokens)) - len(pages)
        if missing + reserve > (pool.num_available if lent else pool.num_unlent):
            pool.release(reversed(pages))
            return False
        sequence.num_computed = len(pages) * size
        sequence.num_published = len(pages)
        sequence.pages = pages + self._allocate(missing)
        return True

    def grow(self, sequence: SequenceState, num_slots: int) -> bool:
        """Let the sequence write its slots from `num_computed` to `num_slots`; False, nothing changed, if pages lack.

        Pages there that others hold are copied, a page that others could find is withdrawn from the index.
        """
        pool = self.pool
        written = range(sequence.num_computed // pool.page_size, len(sequence.pages))
        foreign = [i for i in written if not pool.is_writable(sequence.pages[i])]
        missing = max(0, pool.pages_for(num_slots) - len(sequence.pages))
        if not foreign and not missing:
            return True
        if missing + sum(pool.is_shared(sequence.pages[i]) for i in foreign) > pool.num_available:
            return False
        for i in foreign:
            page = sequence.pages[i]
            owned = self.pool.make_writable(page)
            if owned != page:
                self._copy_page(page, owned)
                sequence.pages[i] = owned
            sequence.num_published = min(sequence.num_published, i)
        sequence.pages += self._allocate(missing)
        return True

    def _allocate(self, count: int) -> list[int]:
        pages = self.pool.allocate(count)
        for page in self._unclean.intersection(pages):
            self._clear_page(page)
            self._unclean.remove(page)
        return pages

    def fork(self, first: SequenceState, sibling: SequenceState) -> None:
        """Share the prompt's pages with `sibling`, which then computes only the prompt's last token again."""
        assert not sibling.pages, "a sibling is forked once"
        assert first.num_computed >= sibling.num_prompt_tokens, "the prompt is computed before it is shared"
        sibling.pages = first.pages[: self.pool.pages_for(sibling.num_prompt_tokens)]
        self.pool.share(sibling.pages)
        sibling.num_computed = sibling.num_prompt_tokens - 1
        sibling.num_published = sibling.num_computed // self.pool.page_size
        sibling.hashes = first.hashes[: sibling.num_published]

    def publish(self, sequence: SequenceState) -> None:
        """Offer to the index the pages that became full of committed and computed tokens."""
        full = sequence.num_computed // self.pool.page_size
        if full > sequence.num_published and self.pool.prefix_cache and sequence.replays is None:
            assert sequence.num_computed <= len(sequence.tokens), "only committed tokens are published"
            extend_hashes(sequence.hashes, sequence.tokens, self.pool.page_size, sequence.cache_salt, full)
            for i in range(sequence.num_published, full):
                self.pool.publish(sequence.pages[i], sequence.hashes[i])
            sequence.num_published = full

    def trim(self, sequence: SequenceState) -> None:
        """Give back the pages at the end that only a draft needed."""
        needed = self.pool.pages_for(len(sequence.tokens))
        if len(sequence.pages) > needed:
            self.pool.release(reversed(sequence.pages[needed:]))
            del sequence.pages[needed:]

    def drop(self, sequence: SequenceState) -> None:
        """Give back everything, the front of the sequence last to be evicted."""
        if self.kept is not None and sequence.num_prompt_tokens >= LEAST_TOKENS:
            num_full = min(sequence.num_published, sequence.num_prompt_tokens // self.pool.page_size)
            self.kept.used(sequence.tenant, sequence.hashes[:num_full])
        self.pool.release(reversed(sequence.pages))
        sequence.pages = []
        sequence.num_computed = sequence.num_published = 0

    def clear(self, sequence: SequenceState) -> None:
        """Fill with zeros, and take out of the index, the pages that no other sequence holds.

        Attention multiplies what a row must not see by 0, so a stored value that is no number would reach the row of
        the next holder.
        """
        for page in sequence.pages:
            if not self.pool.is_shared(page):
                self.pool.make_writable(page)
                self._clear_page(page)
