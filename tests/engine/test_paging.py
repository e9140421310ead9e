"""What sequences hold, share and publish."""

from prolepsis.engine.kv.pages import PagePool
from prolepsis.engine.paging import CALM_STEPS, Paging
from prolepsis.engine.request import SequenceState, open_request
from tests.fakes import request

SIZE = 4


def sequence_of(tokens: list[int], n: int = 1) -> list[SequenceState]:
    return open_request(request("a", tokens, n=n), 0.0, 0, (), None).sequences


def make(num_pages: int) -> tuple[Paging, list[tuple[int, int]]]:
    copies: list[tuple[int, int]] = []
    return Paging(PagePool(num_pages, SIZE), lambda a, b: copies.append((a, b)), lambda page: None), copies


def _computed(paging: Paging, tokens: list[int]) -> int:
    """Return how many tokens another sequence would find computed."""
    (sequence,) = sequence_of(tokens)
    paging.start(sequence, 0)
    computed = sequence.num_computed
    paging.drop(sequence)
    return computed


def test_page_is_published_when_all_its_tokens_are_computed_not_before() -> None:
    paging, _ = make(8)
    tokens = list(range(9))
    (sequence,) = sequence_of(tokens)
    paging.start(sequence, 0)
    for computed, expected in ((3, 0), (4, 4), (7, 4), (8, 8), (9, 8)):
        sequence.num_computed = computed
        paging.publish(sequence)
        assert _computed(paging, tokens) == expected


def test_last_token_is_always_left_to_compute() -> None:
    paging, _ = make(8)
    (sequence,) = sequence_of(list(range(8)))
    paging.start(sequence, 0)
    sequence.num_computed = 8
    paging.publish(sequence)
    assert _computed(paging, list(range(8))) == 4


def test_short_pages_change_nothing() -> None:
    paging, _ = make(3)
    (held,) = sequence_of([1] * 5)
    assert paging.start(held, 0)
    (late,) = sequence_of([2] * 5)
    assert not paging.start(late, 0)
    assert not paging.start(sequence_of([2])[0], reserve=1)
    assert not paging.grow(held, 13)
    paging.pool.check([held.pages])


def test_siblings_share_the_prompt_and_copy_what_they_write() -> None:
    paging, copies = make(8)
    first, second, third = sequence_of(list(range(6)), n=3)
    paging.start(first, 0)
    first.num_computed = 6
    paging.publish(first)
    for sibling in (second, third):
        paging.fork(first, sibling)
        assert sibling.pages == first.pages
        assert sibling.num_pending == 1
    first.tokens.append(7)
    shared = first.pages[1]
    for sequence in (first, second, third):
        assert paging.grow(sequence, len(sequence.tokens))
    assert [s.pages[0] for s in (first, second, third)] == [first.pages[0]] * 3
    assert len({s.pages[1] for s in (first, second, third)}) == 3
    assert [source for source, _ in copies] == [shared] * 2  # the last holder writes in place
    paging.pool.check([s.pages for s in (first, second, third)])


def test_sibling_of_a_prompt_that_fills_its_pages_leaves_the_published_page_alone() -> None:
    paging, copies = make(8)
    tokens = list(range(8))
    first, second = sequence_of(tokens, n=2)
    paging.start(first, 0)
    first.num_computed = 8
    paging.publish(first)
    paging.fork(first, second)
    paging.grow(second, 8)
    assert copies == [(first.pages[1], second.pages[1])]
    assert _computed(paging, [*tokens, 1]) == 8


def test_copy_without_a_page_to_copy_into_is_refused() -> None:
    paging, copies = make(2)
    first, second = sequence_of(list(range(6)), n=2)
    paging.start(first, 0)
    first.num_computed = 6
    paging.fork(first, second)
    assert not paging.grow(second, 6)
    paging.drop(first)
    assert paging.grow(second, 6)
    assert not copies


def test_trim_gives_back_what_only_a_draft_needed() -> None:
    paging, _ = make(8)
    (sequence,) = sequence_of(list(range(6)))
    paging.start(sequence, 0)
    paging.grow(sequence, 15)
    assert len(sequence.pages) == 4
    paging.trim(sequence)
    assert len(sequence.pages) == 2
    paging.pool.check([sequence.pages])


class FakeLender:
    name = "lender"

    def __init__(self, *, is_free: bool = True) -> None:
        self.is_free = is_free
        self.calls: list[str] = []

    def lend(self) -> bool:
        self.calls.append("lend")
        return self.is_free

    def take_back(self) -> None:
        self.calls.append("take_back")


def with_lender(lender: FakeLender) -> tuple[Paging, list[tuple[int, int]], list[int]]:
    copies, cleared = list[tuple[int, int]](), list[int]()
    pool = PagePool(4, SIZE, num_lendable=3)
    return Paging(pool, lambda a, b: copies.append((a, b)), cleared.append, lender=lender), copies, cleared


def test_a_lender_whose_memory_is_in_use_lends_nothing() -> None:
    paging, _, _ = with_lender(FakeLender(is_free=False))
    assert not paging.borrow()
    assert not make(4)[0].borrow(), "nor does none"
    assert paging.pool.num_available == 4


def test_lent_pages_are_cleared_once_and_are_for_what_runs() -> None:
    lender = FakeLender()
    paging, _, cleared = with_lender(lender)
    (held,), (new,) = sequence_of(list(range(16))), sequence_of([1])
    assert paging.start(held, 0)
    assert not paging.grow(held, 17)
    assert paging.borrow()
    assert not paging.borrow(), "once"
    assert paging.grow(held, 17)
    assert cleared == [4], "what the lender left there could be no numbers"
    assert not paging.start(new, 0)
    assert paging.start(new, 0, lent=True)
    assert (new.pages, cleared, lender.calls) == ([5], [4, 5], ["lend"])
    paging.drop(new)
    assert paging.start(new, 0, lent=True)
    assert cleared == [4, 5]


def test_pages_go_back_after_calm_steps_and_what_is_held_there_is_copied() -> None:
    lender = FakeLender()
    paging, copies, _ = with_lender(lender)
    (other,), (first, second) = sequence_of(list(range(14))), sequence_of(list(range(6)), n=2)
    paging.start(other, 0)
    assert paging.borrow()
    assert paging.start(first, 0, lent=True)
    first.num_computed = 6
    paging.fork(first, second)
    assert first.pages == second.pages == [4, 5]
    for _ in range(CALM_STEPS):
        paging.settle([other, first, second])
    assert lender.calls == ["lend"], "the other one needs its pages"
    paging.drop(other)
    for _ in range(CALM_STEPS - 1):
        paging.settle([first, second])
    paging.settle([first, second, *sequence_of([1], n=3)])  # a start would not be allowed
    for _ in range(CALM_STEPS):
        assert lender.calls == ["lend"]
        paging.settle([first, second])
    assert lender.calls == ["lend", "take_back"]
    assert first.pages == second.pages == [target for _, target in copies]
    assert [source for source, _ in copies] == [4, 5]
    paging.pool.check([first.pages, second.pages])


def test_pages_that_nobody_holds_go_back_at_once() -> None:
    lender = FakeLender()
    paging, _, _ = with_lender(lender)
    assert paging.borrow()
    paging.settle([])
    paging.settle([])
    assert (lender.calls, paging.pool.num_available) == (["lend", "take_back"], 4)
