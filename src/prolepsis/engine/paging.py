"""Pages of samples: what a sample holds, shares, publishes and gives back."""

from collections.abc import Callable

from prolepsis.engine.request import Sample
from prolepsis.kv.pages import PagePool, extend_hashes


class Paging:
    """Moves pages between the pool and samples; `copy_page` copies what a page stores (`KVCache.copy_page`)."""

    def __init__(self, pool: PagePool, copy_page: Callable[[int, int], None]) -> None:
        self.pool = pool
        self._copy_page = copy_page

    def start(self, sample: Sample, reserve: int) -> bool:
        """Give a sample without pages all that its tokens need, computed ones where the index has them.

        At least one token is left to compute. Returns False, with nothing changed, where fewer than `reserve` pages
        would stay available.
        """
        size, pool = self.pool.page_size, self.pool
        assert sample.num_computed == len(sample.pages) == 0, "only a sample without pages is started"
        reusable = (len(sample.tokens) - 1) // size if pool.prefix_cache and sample.replays is None else 0
        extend_hashes(sample.hashes, sample.tokens, size, sample.scope, reusable)
        pages = pool.match(sample.hashes[:reusable])
        missing = pool.pages_for(len(sample.tokens)) - len(pages)
        if missing + reserve > pool.num_available:
            pool.release(reversed(pages))
            return False
        sample.num_computed = len(pages) * size
        sample.num_published = len(pages)
        sample.pages = pages + pool.allocate(missing)
        return True

    def grow(self, sample: Sample, num_slots: int) -> bool:
        """Let the sample write its slots from `num_computed` up to `num_slots`; False, nothing changed, if pages lack.

        Pages there that others hold are copied, a page that others could find is withdrawn from the index.
        """
        pool = self.pool
        written = range(sample.num_computed // pool.page_size, len(sample.pages))
        foreign = [i for i in written if not pool.is_writable(sample.pages[i])]
        missing = max(0, pool.pages_for(num_slots) - len(sample.pages))
        if not foreign and not missing:
            return True
        if missing + sum(pool.is_shared(sample.pages[i]) for i in foreign) > pool.num_available:
            return False
        for i in foreign:
            self._own(sample, i)
        sample.pages += pool.allocate(missing)
        return True

    def fork(self, first: Sample, sibling: Sample) -> None:
        """Let `sibling`, of the same prompt, stand where it only has to compute the prompt's last token again."""
        assert not sibling.pages, "a sibling is forked once"
        assert first.num_computed >= sibling.num_prompt_tokens, "the prompt is computed before it is shared"
        sibling.pages = first.pages[: self.pool.pages_for(sibling.num_prompt_tokens)]
        self.pool.share(sibling.pages)
        sibling.num_computed = sibling.num_prompt_tokens - 1
        sibling.num_published = sibling.num_computed // self.pool.page_size
        sibling.hashes = first.hashes[: sibling.num_published]

    def publish(self, sample: Sample) -> None:
        """Offer to the index the pages that became full of committed and computed tokens."""
        full = sample.num_computed // self.pool.page_size
        if full > sample.num_published and self.pool.prefix_cache and sample.replays is None:
            assert sample.num_computed <= len(sample.tokens), "only committed tokens are published"
            extend_hashes(sample.hashes, sample.tokens, self.pool.page_size, sample.scope, full)
            for i in range(sample.num_published, full):
                self.pool.publish(sample.pages[i], sample.hashes[i])
            sample.num_published = full

    def trim(self, sample: Sample) -> None:
        """Give back the pages at the end that only a draft needed."""
        needed = self.pool.pages_for(len(sample.tokens))
        if len(sample.pages) > needed:
            self.pool.release(reversed(sample.pages[needed:]))
            del sample.pages[needed:]

    def drop(self, sample: Sample) -> None:
        """Give back everything, the front of the sample last to be evicted."""
        self.pool.release(reversed(sample.pages))
        sample.pages = []
        sample.num_computed = sample.num_published = 0

    def _own(self, sample: Sample, i: int) -> None:
        page = sample.pages[i]
        owned = self.pool.make_writable(page)
        if owned != page:
            self._copy_page(page, owned)
            sample.pages[i] = owned
        sample.num_published = min(sample.num_published, i)
