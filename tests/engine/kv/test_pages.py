"""The page pool: its accounting holds after whatever sequence of operations."""

from copy import deepcopy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prolepsis.engine.kv.pages import PagePool, extend_hashes, page_hash, root_hash

SIZE = 4


def hashes_of(tokens: list[int], scope: str = "") -> list[bytes]:
    hashes: list[bytes] = []
    extend_hashes(hashes, tokens, SIZE, scope, len(tokens) // SIZE)
    return hashes


def test_hash_depends_on_tokens_and_everything_before() -> None:
    a, b = root_hash("a"), root_hash("b")
    hashes = {page_hash(previous, tokens) for previous in (a, b) for tokens in ([1, 2], [2, 1], [1, 2, 0])}
    assert len(hashes) == 6
    assert hashes_of([1, 1, 1, 1, 2, 2, 2, 2])[1] != hashes_of([3, 1, 1, 1, 2, 2, 2, 2])[1]


def test_match_finds_the_longest_published_prefix() -> None:
    pool = PagePool(8, SIZE)
    pages = pool.allocate(3)
    hashes = hashes_of(list(range(12)))
    pool.publish(pages[0], hashes[0])
    pool.publish(pages[1], hashes[1])
    assert pool.match(hashes) == pages[:2]
    assert pool.match(hashes_of([9, 9, 9, 9])) == []
    assert pool.match(hashes_of(list(range(12)), "other")) == []
    pool.check([pages, pages[:2]])


def test_released_pages_stay_findable_until_memory_is_short_least_recent_first() -> None:
    pool = PagePool(3, SIZE)
    old, new = pool.allocate(1), pool.allocate(1)
    first, second = hashes_of([1] * 4), hashes_of([2] * 4)
    pool.publish(old[0], first[0])
    pool.publish(new[0], second[0])
    pool.release(old)
    pool.release(new)
    assert (pool.num_available, pool.num_referenced) == (3, 0)
    copy = deepcopy(pool)
    assert copy.match(first) + copy.match(second) == old + new
    pool.allocate(2)
    assert pool.match(first) == []
    assert pool.match(second) == new
    pool.check()


def test_front_of_a_sequence_is_evicted_last() -> None:
    pool = PagePool(2, SIZE)
    pages, hashes = pool.allocate(2), hashes_of(list(range(8)))
    for page, key in zip(pages, hashes, strict=True):
        pool.publish(page, key)
    pool.release(reversed(pages))
    pool.allocate(1)
    assert pool.match(hashes) == pages[:1]


def test_shared_page_is_replaced_and_findable_page_is_withdrawn_before_writing() -> None:
    pool = PagePool(4, SIZE)
    (page,) = pool.allocate(1)
    assert pool.is_writable(page)
    pool.share([page])
    fresh = pool.make_writable(page)
    assert fresh != page
    pool.check([[page], [fresh]])
    key = hashes_of([1] * 4)
    pool.publish(page, key[0])
    assert not pool.is_writable(page)
    assert pool.make_writable(page) == page
    assert pool.match(key) == []
    pool.check([[page], [fresh]])


def test_without_prefix_cache_nothing_is_found() -> None:
    pool = PagePool(2, SIZE, prefix_cache=False)
    pages, hashes = pool.allocate(1), hashes_of([1] * 4)
    pool.publish(pages[0], hashes[0])
    assert pool.match(hashes) == []


def test_dropping_the_cache_frees_pages_and_keeps_holders() -> None:
    pool = PagePool(3, SIZE)
    pages, hashes = pool.allocate(2), hashes_of(list(range(8)))
    for page, key in zip(pages, hashes, strict=True):
        pool.publish(page, key)
    pool.release(pages[1:])
    pool.drop_cached()
    pool.check([pages[:1]])
    assert pool.match(hashes) == []


@pytest.mark.parametrize(
    "break_it",
    [
        lambda pool: pool._free.append(pool._free[0]),
        lambda pool: pool._free.pop(),
        lambda pool: pool._references.__setitem__(0, 2),
        lambda pool: pool._index.clear(),
    ],
    ids=["free twice", "lost", "count", "index"],
)
def test_check_sees_broken_accounting(break_it: object) -> None:
    pool = PagePool(4, SIZE)
    pages = pool.allocate(2)
    pool.publish(pages[0], hashes_of([1] * 4)[0])
    pool.check([pages])
    assert callable(break_it)
    break_it(pool)
    with pytest.raises(AssertionError):
        pool.check([pages])


def test_lent_pages_are_the_last_handed_out_and_are_not_found_without_a_holder() -> None:
    pool = PagePool(2, SIZE, num_lendable=2)
    [old] = pool.allocate(1)
    pool.publish(old, hashes_of([1] * 4)[0])
    pool.release([old])
    pool.lend()
    pages = pool.allocate(3)
    assert pages == [1, 0, 2], "what nobody holds is evicted first"
    pool.publish(2, hashes_of([2] * 4)[0])
    with pytest.raises(AssertionError, match="from its holder"):
        pool.take_back()
    pool.release(pages)
    assert pool.match(hashes_of([2] * 4)) == []
    pool.take_back()
    pool.check([])
    assert (pool.num_available, pool.num_referenced) == (2, 0)


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, share, write, publish and go; a page keeps what was written until its holder lets it go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(6, SIZE, num_lendable=3)
        self.held: list[list[int]] = []
        self.hashes: list[list[bytes]] = []
        self.serial = 0

    @rule(count=st.integers(1, 3), kind=st.integers(0, 3))
    def start(self, count: int, kind: int) -> None:
        hashes = hashes_of([kind] * SIZE * count)
        pages = self.pool.match(hashes[: count - 1])
        if count - len(pages) <= self.pool.num_available:
            self.held.append(pages + self.pool.allocate(count - len(pages)))
            self.hashes.append(hashes)
        else:
            self.pool.release(reversed(pages))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.held) - 1))
        for page, key in zip(self.held[i], self.hashes[i], strict=True):
            self.pool.publish(page, key)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.share(self.held[i])
        self.held.append(list(self.held[i]))
        self.hashes.append(self.hashes[i])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def write_tail(self, data: st.DataObject) -> None:
        pages = self.held[data.draw(st.integers(0, len(self.held) - 1))]
        if self.pool.is_shared(pages[-1]) and not self.pool.num_available:
            return
        pages[-1] = self.pool.make_writable(pages[-1])
        assert self.pool.is_writable(pages[-1])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.held) - 1))
        self.pool.release(reversed(self.held.pop(i)))
        self.hashes.pop(i)

    @precondition(lambda self: not self.pool.num_lent)
    @rule()
    def lend(self) -> None:
        before = self.pool.num_available
        assert [*self.pool.lend()] == [6, 7, 8]
        assert (self.pool.num_available, self.pool.num_unlent) == (before + 3, before)

    @precondition(lambda self: self.pool.num_lent and not any(max(pages) >= 6 for pages in self.held))
    @rule()
    def take_back(self) -> None:
        before = self.pool.num_unlent
        self.pool.take_back()
        assert self.pool.num_available == before >= 0

    @invariant()
    def accounting_holds(self) -> None:
        self.pool.check(self.held)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=30)
