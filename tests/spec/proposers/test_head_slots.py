"""Whose pages are whose: a sample goes on only from slots that this head wrote."""

import torch

from prolepsis.models.protocol import PAGE_SIZE
from prolepsis.spec.features import Shown
from prolepsis.spec.proposers.head_slots import HeadSlots, HeadState
from tests.spec.samples import FakeSample


def sample(key: str, *pages: int) -> FakeSample:
    return FakeSample(list(range(4 * PAGE_SIZE)), key=key, pages=list(pages))


def show(slots: HeadSlots, of: FakeSample, start: int, count: int) -> HeadState | None:
    features = torch.arange(start, start + count, dtype=torch.bfloat16)[:, None]
    return slots.add(Shown(of, start, range(count), features))


def test_a_sample_seen_from_its_start_goes_on_and_hands_its_pages_on() -> None:
    slots = HeadSlots(8, 1)
    assert show(slots, sample("a", 3, 4, 5), 0, 70) is not None
    found = show(slots, sample("b", 3, 4, 6), 2 * PAGE_SIZE, 5)
    assert found is not None
    assert found.take(1).tolist() == [[63.0]], "the features of the page before"
    forked = sample("c", 3, 4, 7)
    slots.copy_page(5, 7)
    assert show(slots, forked, 70, 1) is not None


def test_a_sample_that_began_before_this_head_has_no_slots_and_marks_what_it_fills() -> None:
    slots = HeadSlots(8, 1)
    assert show(slots, sample("whole", 2), 0, PAGE_SIZE) is not None
    late = sample("late", 0, 1, 2)
    assert show(slots, late, 40, 20) is None
    assert slots.get(late) is None
    assert show(slots, late, 60, 36) is None, "page 2 changed hands"
    assert show(slots, sample("hit", 2, 3), PAGE_SIZE, 1) is None
    assert show(slots, sample("anew", 0, 1), 0, 40) is not None, "pages written again are this head's"
