"""Loads as they are given."""

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.lab.measure.arrivals import TrafficLoad, load_of


def test_a_load_is_a_number_at_once_or_a_rate() -> None:
    assert load_of("8") == TrafficLoad(at_once=8)
    assert load_of("0.5/s") == TrafficLoad(per_second=0.5)
    assert str(load_of("8")) == "8 at once"
    assert str(load_of("2/s")) == "2 a second"


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "0/s", "nan/s", "inf/s", "2/m", "a"])
def test_other_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="requests at once"):
        load_of(text)
