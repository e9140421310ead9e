"""A call either ends or is overdue, never both, and the limit grows with what passes take."""

import pytest

from prolepsis.engine.drafting.call_watch import CallWatch, Superseded, WatchedCall
from prolepsis.engine.drafting.containment import ContainedProposer
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.ledger import Ledger
from prolepsis.engine.drafting.proposer import SequenceView
from tests.clock import Clock
from tests.engine.drafting.sequences import VOCAB, FakeSequence
from tests.fake_proposer import Scripted

SEQUENCES = [FakeSequence([1], key=key) for key in "abc"]


class Named:
    name = "slow"

    def __init__(self, *, free: bool = True) -> None:
        self.free = free


def watch_at(clock: Clock) -> CallWatch:
    return CallWatch(0.1, clock)


def test_a_call_in_time_changes_nothing() -> None:
    clock = Clock(0.0)
    watch = watch_at(clock)
    call = watch.enter(Named(), SEQUENCES)
    clock.now = 0.1
    assert watch.take_overdue() is None
    watch.leave(call)
    clock.now = 9.0
    assert watch.take_overdue() is None


def test_an_overdue_call_is_taken_once_and_its_thread_ends() -> None:
    clock = Clock(0.0)
    watch = watch_at(clock)
    call = watch.enter(Named(), SEQUENCES)
    clock.now = 0.11
    taken = watch.take_overdue()
    assert taken is call
    assert isinstance(taken, WatchedCall)
    assert (taken.sequences, taken.returned, watch.take_overdue()) == (SEQUENCES, False, None)
    later = watch.enter(Named(), [])
    with pytest.raises(Superseded):
        watch.leave(call)
    assert taken.returned
    watch.leave(later)


@pytest.mark.parametrize(("free", "limit_s"), [(False, 0.55), (True, 0.1)])
def test_slow_passes_leave_more_time_to_costly_proposers(free: bool, limit_s: float) -> None:
    clock = Clock(0.0)
    watch = watch_at(clock)
    watch.passed(0.5)
    watch.passed(0.01)
    watch.enter(Named(free=free), [])
    clock.now = limit_s - 0.01
    assert watch.take_overdue() is None
    clock.now = limit_s + 0.01
    assert watch.take_overdue() is not None


def test_without_a_limit_no_call_is_overdue() -> None:
    watch = CallWatch()
    assert watch.enter(Named(), []) is None
    assert watch.take_overdue() is None


class Late:
    """A proposer of which the second sequence's draft is late: the watchdog takes the call meanwhile."""

    def __init__(self, *, raises: bool = False) -> None:
        self.clock, self.ledger, self.asked = Clock(0.0), Ledger(["scripted"]), list[str]()
        self.watch = watch_at(self.clock)
        self.taken: WatchedCall | None = None
        self.raises = raises
        self.scripted = Scripted(self._draft)
        self.contained = ContainedProposer(self.scripted, VOCAB, ledger=self.ledger, watch=self.watch)

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        self.asked.append(sequence.key)
        if sequence.key == "b":
            self.clock.now += 1.0
            self.taken = self.watch.take_overdue()
            if self.raises:
                raise RuntimeError("late, and then wrong")
        return chain((7,), "scripted")


@pytest.mark.parametrize("raises", [False, True])
def test_a_late_proposer_is_asked_no_further(raises: bool) -> None:
    late = Late(raises=raises)
    with pytest.raises(Superseded):
        late.contained.propose(SEQUENCES, [4, 4, 4])
    assert late.asked == ["a", "b"] if raises else late.asked == ["a", "b", "c"]
    assert late.taken is not None


@pytest.mark.parametrize("raises", [False, True])
def test_a_call_that_comes_back_too_late_counts_nothing(raises: bool) -> None:
    late = Late(raises=raises)
    late.ledger.fail("scripted", SEQUENCES[1].traffic_class)
    with pytest.raises(Superseded):
        late.contained.propose(SEQUENCES[1:2], [4])
    assert [count.errors_in_row for count in late.ledger.counts()] == [1]


def test_a_lost_proposer_is_not_called_until_its_call_comes_back_and_learns_then_what_ended() -> None:
    late = Late()
    contained = late.contained
    assert contained.propose(SEQUENCES[:1], [4]) != [None]
    call = late.watch.enter(contained, SEQUENCES)
    assert call is not None
    contained.lose(call)
    assert contained.num_failures == 1
    assert [count.num_overdue for count in late.ledger.counts()] == [1], "a call is one for each traffic class"
    contained.forget(SEQUENCES[0])
    assert all(contained.backs_off() for _ in range(2000))
    assert late.scripted.forgotten == []
    assert all(count.is_lost for count in late.ledger.counts())
    call.returned = True
    assert not contained.backs_off()
    assert not any(count.is_lost for count in late.ledger.counts())
    assert late.scripted.forgotten == ["a"]


def test_a_call_that_never_returns_keeps_a_bounded_list() -> None:
    late = Late()
    call = late.watch.enter(late.contained, [])
    assert call is not None
    late.contained.lose(call)
    for number in range(5000):
        late.contained.forget(FakeSequence([1], key=str(number)))
    call.returned = True
    assert all(late.contained.backs_off() for _ in range(1000)), "it missed too much to be right again"
