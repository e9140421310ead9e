"""Numbers as people read them."""

import pytest

from prolepsis.core.units import figure


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.0, "12"),
        (12.345, "12.3"),
        (0.25, "0.25"),
        (999.6, "1000"),
        (-3770.0, "-3770"),
        (38_712.4, "38712"),
        (0.000012345, "0.0000123"),
        (float("inf"), "inf"),
    ],
)
def test_a_figure_has_no_exponent(value: float, text: str) -> None:
    assert figure(value) == text
