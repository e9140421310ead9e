"""Whose pages are whose: a sequence continues only from slots that this head wrote."""

import torch

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.engine.drafting.proposer import HiddenStates
from prolepsis.engine.drafting.proposers.head_slots import HeadSlots, HeadState
from tests.engine.drafting.sequences import FakeSequence


def sequence(key: str, *pages: int) -> FakeSequence:
    return FakeSequence(list(range(4 * PAGE_SIZE)), key=key, pages=list(pages))


def show(slots: HeadSlots, of: FakeSequence, start: int, count: int) -> HeadState | None:
    features = torch.arange(start, start + count, dtype=torch.bfloat16)[:, None]
    return slots.add(HiddenStates(of, start, range(count), features))


def show_and_park(slots: HeadSlots, of: FakeSequence, count: int) -> HeadState:
    """Show the first `count` tokens of a sequence that may not draft."""
    state = show(slots, of, 0, count)
    assert state is not None
    slots.defer(state, of)
    return state


def test_a_sequence_seen_from_its_start_goes_on_and_hands_its_pages_on() -> None:
    slots = HeadSlots(8, 1)
    assert show(slots, sequence("a", 3, 4, 5), 0, 70) is not None
    found = show(slots, sequence("b", 3, 4, 6), 2 * PAGE_SIZE, 5)
    assert found is not None
    assert found.take(1).tolist() == [[63.0]], "the features of the page before"
    forked = sequence("c", 3, 4, 7)
    slots.copy_page(5, 7)
    assert show(slots, forked, 70, 1) is not None


def test_a_sequence_whose_page_is_stale_begins_again_at_the_next_one() -> None:
    slots = HeadSlots(8, 1)
    late = sequence("late", 0, 1, 2)
    assert show(slots, late, 40, 20) is None, "nothing of a page that was not seen from its start"
    assert slots.get(late) is None
    state = show(slots, late, 60, 30)
    assert state is not None
    assert (state.valid_from, state.written, state.seen) == (64, 64, 90)
    assert state.pages(late) == [2]
    assert state.take(3).tolist() == [[63.0], [64.0], [65.0]], "from the token before the base on"
    hit = show(slots, sequence("hit", 0, 1, 2, 4), 3 * PAGE_SIZE, 1)
    assert hit is not None
    assert (hit.valid_from, hit.written) == (64, 96), "whoever shares the page counts from there too"


def test_after_a_stale_page_that_was_full_nothing_is_known_before_the_base() -> None:
    slots = HeadSlots(8, 1)
    state = show(slots, sequence("hit", 5, 6), PAGE_SIZE, 3)
    assert state is not None
    assert (state.valid_from, state.take(2).tolist()) == (PAGE_SIZE, [[0.0], [32.0]])


def test_tokens_that_were_missed_leave_their_pages_stale() -> None:
    slots = HeadSlots(8, 1)
    quiet = sequence("quiet", 0, 1)
    assert show(slots, quiet, 0, 40) is not None
    slots.miss(quiet, 40, 41)
    assert slots.get(quiet) is None
    assert show(slots, quiet, 41, 5) is None
    found = show(slots, sequence("shares", 0, 3), PAGE_SIZE, 4)
    assert found is not None
    assert found.valid_from == 0, "the page before was seen whole"
    both = show(slots, sequence("both", 0, 1, 2), 2 * PAGE_SIZE, 4)
    assert both is not None
    assert both.valid_from == 2 * PAGE_SIZE
    assert show(slots, sequence("anew", 0, 1), 0, 40) is not None, "pages written again are this head's"


def test_pages_of_different_bases_are_not_read_together() -> None:
    slots = HeadSlots(8, 1)
    assert show(slots, sequence("first", 0), 0, PAGE_SIZE) is not None
    assert show(slots, sequence("other", 7, 1), PAGE_SIZE, PAGE_SIZE) is not None, "page 7 is stale"
    mixed = show(slots, sequence("mixed", 0, 1, 2), 2 * PAGE_SIZE, 1)
    assert mixed is not None
    assert mixed.valid_from == PAGE_SIZE


def test_deferred_pages_are_written_by_the_first_who_drafts_from_them() -> None:
    slots = HeadSlots(8, 1)
    off = sequence("off", 0, 1, 2)
    state = show_and_park(slots, off, 80)
    assert (state.written, state.seen) == (64, 80)
    empty = HeadSlots(8, 1).num_bytes
    assert slots.num_bytes == empty + 2 * 2 * PAGE_SIZE
    first, second = sequence("first", 0, 1, 3), sequence("second", 0, 1, 4)
    began = {s.key: show(slots, s, 2 * PAGE_SIZE, 10) for s in (first, second)}
    one, two = began["first"], began["second"]
    assert one is not None
    assert two is not None
    start, features = slots.take(one, first, 74)
    assert (start, features[:, 0].tolist()) == (0, [0.0, *range(73)]), (
        "from the first slot on, each from the token before"
    )
    assert slots.num_bytes == empty
    start, features = slots.take(two, second, 74)
    assert (start, features[:, 0].tolist()) == (64, [*range(63, 73)]), "the pages before are written by now"


def test_a_sequence_that_may_draft_at_last_writes_what_it_deferred_itself() -> None:
    slots = HeadSlots(8, 1)
    own = sequence("own", 0, 1, 2)
    state = show_and_park(slots, own, 80)
    assert show(slots, own, 80, 1) is state
    start, features = slots.take(state, own, 82)
    assert (start, features[:, 0].tolist()) == (0, [0.0, *range(81)])
    assert (state.written, state.seen) == (82, 81)


def test_deferred_states_are_bounded_and_dropped_ones_are_stale() -> None:
    slots = HeadSlots(8, 1, max_deferred_bytes=2 * PAGE_SIZE)
    off = sequence("off", 0, 1, 2, 3)
    show_and_park(slots, off, 80)
    assert show(slots, off, 80, 1) is None, "page 1 was given up: the end of a prefix before its front"
    hit = show(slots, sequence("hit", 0, 4), PAGE_SIZE, 1)
    assert hit is not None
    assert (hit.valid_from, hit.has_deferred) == (0, True)
    slots.copy_page(0, 5)
    assert show(slots, sequence("copied", 5, 6), PAGE_SIZE - 1, 1) is None, "there was nothing to copy"
    assert slots.num_bytes == HeadSlots(8, 1).num_bytes + 2 * PAGE_SIZE
    assert show(slots, sequence("anew", 0), 0, 5) is not None
    assert slots.num_bytes == HeadSlots(8, 1).num_bytes, "what is written anew is not deferred"


def test_the_state_used_last_is_dropped_last() -> None:
    slots = HeadSlots(8, 1, max_deferred_bytes=2 * 2 * PAGE_SIZE)
    for number, of in enumerate((sequence("one", 0, 5), sequence("two", 1, 5), sequence("three", 2, 5))):
        show_and_park(slots, of, PAGE_SIZE)
        if number == 1:
            assert show(slots, sequence("hit", 0, 6), PAGE_SIZE, 1) is not None
    bases = [show(slots, sequence(f"again {page}", page, 7), PAGE_SIZE, 1) for page in range(3)]
    assert [state is not None and state.valid_from for state in bases] == [0, PAGE_SIZE, 0]


def test_a_fork_goes_on_with_what_its_sibling_had_not_written_yet() -> None:
    slots = HeadSlots(8, 1)
    first, second, third = sequence("first", 0), sequence("second", 1), sequence("third", 2)
    state = show(slots, first, 0, 20)
    assert state is not None
    slots.copy_page(0, 1)
    slots.copy_page(0, 2)
    assert show(slots, first, 20, 2) is state
    for fork in (second, third):
        found = show(slots, fork, 19, 1)
        assert found is not None
        assert (found.valid_from, found.written, found.seen) == (0, 0, 20)
        assert found.take(20)[:, 0].tolist() == [0.0, *range(19)]


def test_a_full_page_that_is_written_again_from_its_last_token_on_keeps_what_is_before() -> None:
    slots = HeadSlots(8, 1)
    whole = sequence("whole", 0, 1)
    state = show(slots, whole, 0, 2 * PAGE_SIZE)
    assert state is not None
    slots.take(state, whole, 2 * PAGE_SIZE)
    slots.drop("whole")
    slots.copy_page(1, 2)
    again = show(slots, sequence("again", 0, 2), 2 * PAGE_SIZE - 1, 1)
    assert again is not None
    assert (again.valid_from, again.written) == (0, 2 * PAGE_SIZE - 1)


def test_inside_a_page_of_which_nothing_is_known_a_sequence_begins_at_the_next() -> None:
    slots = HeadSlots(8, 1)
    assert show(slots, sequence("gone", 0), 0, 20) is not None
    slots.drop("gone")
    assert show(slots, sequence("behind", 0, 1), 20, 4) is None


def test_a_sequence_that_comes_back_on_other_pages_begins_again() -> None:
    slots = HeadSlots(8, 1)
    state = show(slots, sequence("back", 0, 1), 0, PAGE_SIZE)
    assert state is not None
    found = show(slots, sequence("back", 5, 1), PAGE_SIZE, 3)
    assert found is not state
    assert found is not None
    assert found.valid_from == PAGE_SIZE, "page 5 is somebody else's, and stale"


def test_after_a_failed_pass_no_sequence_begins_from_its_pages() -> None:
    slots = HeadSlots(8, 1)
    failed = sequence("failed", 0, 1)
    state = show(slots, failed, 0, 40)
    assert state is not None
    slots.take(state, failed, 40)
    slots.fail(failed)
    hit = show(slots, sequence("hit", 0, 2), PAGE_SIZE, 2)
    assert hit is not None
    assert hit.valid_from == PAGE_SIZE
