"""The accounting of KV pages: free list, reference counts, and an index of pages by their content.

The keys and values themselves belong to the model's cache. Every page is in exactly one of three states:

    free        unused, without content worth keeping
    cached      unused, but the index finds it by its hash; evicted when needed, least recently used first
    referenced  held by at least one sequence; it may also be in the index

Pages may be lent to the pool, which are behind its own. They are handed out last, and without a holder they are free.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b


def root_hash(scope: str) -> bytes:
    """Return the hash that precedes the first page of a sequence; scopes never share pages."""
    return blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def page_hash(previous: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of a full page: its tokens and, through `previous`, everything before them."""
    return blake2b(array("I", tokens).tobytes(), digest_size=16, key=previous).digest()


def extend_hashes(hashes: list[bytes], tokens: Sequence[int], page_size: int, scope: str, num_pages: int) -> None:
    """Append to `hashes` until it holds the hashes of the first `num_pages` full pages of `tokens`."""
    for i in range(len(hashes), num_pages):
        previous = hashes[-1] if hashes else root_hash(scope)
        hashes.append(page_hash(previous, tokens[i * page_size : (i + 1) * page_size]))


class PagePool:
    """Accounting of `num_pages` pages of `page_size` tokens, and of `num_lendable` more between `lend` and `take_back`.

    Without `prefix_cache` no page is indexed.
    """

    def __init__(self, num_pages: int, page_size: int, *, prefix_cache: bool = True, num_lendable: int = 0) -> None:
        assert min(num_pages, page_size) > 0, "a pool has at least one page of at least one token"
        self.num_pages = num_pages
        self.page_size = page_size
        self.prefix_cache = prefix_cache
        self._free = list(range(num_pages - 1, -1, -1))
        self._lendable = range(num_pages, num_pages + num_lendable)
        self._free_lent: list[int] = []
        self.num_lent = 0
        self._references = [0] * self._lendable.stop
        self._hashes: list[bytes | None] = [None] * self._lendable.stop
        self._index: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Pages that `allocate` can hand out: free ones, lent or not, and cached ones."""
        return len(self._free) + len(self._cached) + len(self._free_lent)

    @property
    def num_referenced(self) -> int:
        return self.num_pages + self.num_lent - self.num_available

    @property
    def num_unlent(self) -> int:
        """Pages that would be available without the lent ones; negative if more are held."""
        return self.num_pages - self.num_referenced

    def lend(self) -> range:
        """Take in the pages that can be lent; return their numbers."""
        assert not self.num_lent, "pages are lent once until they are taken back"
        self._free_lent, self.num_lent = [*reversed(self._lendable)], len(self._lendable)
        return self._lendable

    def take_back(self) -> None:
        """Give up the lent pages, which have no holder."""
        assert len(self._free_lent) == self.num_lent, "a page is taken back from its holder"
        self._free_lent, self.num_lent = [], 0

    def is_lent(self, page: int) -> bool:
        return page >= self.num_pages

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Return `count` pages with one reference each; the caller has checked `num_available`."""
        assert count <= self.num_available, f"{count} pages wanted, {self.num_available} available"
        num_own = min(count, len(self._free) + len(self._cached))
        pages = [self._free.pop() if self._free else self._evict() for _ in range(num_own)]
        pages += [self._free_lent.pop() for _ in range(count - num_own)]
        for page in pages:
            self._references[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add a reference to each of `pages`, which already have a holder."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is shared but has no holder"
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop a reference to each of `pages`; among pages left without a holder, the first are evicted first."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is released but has no holder"
            self._references[page] -= 1
            if self._references[page] == 0:
                if self.is_lent(page):
                    self._unpublish(page)
                    self._free_lent.append(page)
                elif self._hashes[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None

    def is_writable(self, page: int) -> bool:
        """Say whether its holder may write it: it has no other holder and is not in the index."""
        return self._references[page] == 1 and self._hashes[page] is None

    def make_writable(self, page: int) -> int:
        """Return a page that the holder of `page` may write instead: a new one if it has other holders, else itself.

        A new page takes over the caller's reference; one must be available, and the caller copies the content.
        """
        if self._references[page] > 1:
            (fresh,) = self.allocate(1)
            self._references[page] -= 1
            return fresh
        self._unpublish(page)
        return page

    def is_shared(self, page: int) -> bool:
        return self._references[page] > 1

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the pages of the longest indexed prefix of `hashes`, each with one more reference."""
        pages: list[int] = []
        for key in hashes:
            page = self._index.get(key)
            if page is None:
                break
            if self._references[page] == 0:
                del self._cached[page]
            self._references[page] += 1
            pages.append(page)
        return pages

    def publish(self, page: int, key: bytes) -> None:
        """Let `match` find a full page of committed, computed tokens; of equal pages the index keeps the first."""
        assert self._references[page] > 0, f"page {page} is published but has no holder"
        if self.prefix_cache and key not in self._index:
            assert self._hashes[page] is None, f"page {page} is published under a second hash"
            self._hashes[page] = key
            self._index[key] = page

    def find(self, key: bytes) -> int | None:
        return self._index.get(key)

    def drop_cached(self) -> None:
        """Empty the index; referenced pages stay with their holders."""
        while self._cached:
            self._free.append(self._evict())
        for page in list(self._index.values()):
            self._unpublish(page)

    def check(self, holders: Iterable[Sequence[int]] | None = None) -> None:
        """Check the accounting; with `holders` (the page list of every sequence), check every reference count too.

        Raises `AssertionError` with a sentence. Takes O(pages): for tests and idle times.
        """
        free, pages = {*self._free, *self._free_lent}, range(self.num_pages + self.num_lent)
        referenced = {page for page, count in enumerate(self._references) if count}
        assert min(self._references, default=0) >= 0, "a reference count fell below zero"
        assert len(free) == len(self._free) + len(self._free_lent), "a page is free twice"
        assert sorted([*free, *self._cached, *referenced]) == [*pages], "a page has no state, or two"
        indexed = {page: key for page, key in enumerate(self._hashes) if key is not None}
        assert indexed == {page: key for key, page in self._index.items()}, "index and page hashes disagree"
        assert self._cached.keys() <= indexed.keys(), "a cached page cannot be found"
        assert not free & indexed.keys(), "a free page can be found"
        if holders is not None:
            held = Counter(page for pages in holders for page in pages)
            counts = {page: self._references[page] for page in referenced}
            assert held == counts, f"held {dict(held)}, counted {counts}"

    def _evict(self) -> int:
        page, _ = self._cached.popitem(last=False)
        self._unpublish(page)
        return page

    def _unpublish(self, page: int) -> None:
        key = self._hashes[page]
        if key is not None:
            del self._index[key]
            self._hashes[page] = None
