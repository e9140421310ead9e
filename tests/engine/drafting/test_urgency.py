"""Whether a sequence needs drafts to keep its target."""

import pytest

from prolepsis.engine.drafting.urgency import urgency


@pytest.mark.parametrize(
    ("spent_ms", "num_tokens", "expected"),
    [
        pytest.param(0.0, 1, -1, id="it has just begun"),
        pytest.param(690.0, 100, -1, id="far ahead"),
        pytest.param(850.0, 100, 0, id="as fast as it should be"),
        pytest.param(900.0, 100, 1, id="within, but not by much"),
        pytest.param(1900.0, 100, 1, id="it can be saved"),
        pytest.param(2000.0, 100, 0, id="it is lost"),
        pytest.param(300.0, 2, 1, id="one slow pass loses nothing"),
        pytest.param(320.0, 2, 0, id="but too slow a one does"),
    ],
)
def test_of_a_target_of_10_ms(spent_ms: float, num_tokens: float, expected: int) -> None:
    assert urgency(spent_ms, num_tokens, 10.0) == expected


def test_what_no_machine_can_do_takes_nothing_from_others() -> None:
    assert urgency(5.0, 1, 0.001) == 0
