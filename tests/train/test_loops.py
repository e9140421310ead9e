"""Texts that go round in circles are found, refrains are not."""

import pytest

from prolepsis.train.loops import loop_end


@pytest.mark.parametrize("period", [1, 2, 7, 40])
def test_a_loop_is_cut_after_one_repetition(period: int) -> None:
    head = list(range(1000, 1020))
    loop = list(range(period))
    text = head + loop * max(3, 80 // period)
    end = loop_end(text)
    assert end is not None
    assert len(head) + 2 * period <= end < len(text) + 1
    assert text[:end][: len(head) + period] == head + loop


def test_plain_text_and_short_refrains_stay() -> None:
    assert loop_end(list(range(100))) is None
    assert loop_end([*range(50), 7, 8, 7, 8, 7, 8]) is None
    assert loop_end([]) is None
