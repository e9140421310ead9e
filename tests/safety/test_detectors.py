"""The detectors say what river's public ones say, and cost next to nothing to import."""

import random
import subprocess
import sys

import pytest
from river import drift

from prolepsis.safety.detectors import Adwin, PageHinkley


def steps(rng: random.Random) -> list[float]:
    """A series whose mean changes now and then."""
    return [rng.gauss(mean, 0.05) for mean in rng.choices((0.2, 0.3, 0.6, 0.9), k=12) for _ in range(60)]


@pytest.mark.parametrize("seed", range(4))
def test_adwin_is_rivers(seed: int) -> None:
    ours = Adwin(0.002, min_length=5, grace_period=10)
    theirs = drift.ADWIN(delta=0.002, clock=1, min_window_length=5, grace_period=10)  # type: ignore[no-untyped-call]
    for value in steps(random.Random(seed)):
        ours.update(value)
        theirs.update(value)  # type: ignore[no-untyped-call]
        assert (ours.detected, ours.width) == (theirs.drift_detected, theirs.width)
        assert ours.mean == theirs.estimation


@pytest.mark.parametrize("seed", range(4))
def test_page_hinkley_is_rivers(seed: int) -> None:
    ours = PageHinkley(min_instances=10, delta=0.03, threshold=0.5)
    theirs = drift.PageHinkley(min_instances=10, delta=0.03, threshold=0.5, mode="up")
    found = 0
    for value in steps(random.Random(seed)):
        ours.update(value)
        theirs.update(value)  # type: ignore[no-untyped-call]
        assert ours.detected == theirs.drift_detected
        found += ours.detected
    assert found


def test_they_load_without_scipy() -> None:
    program = "import sys, prolepsis.safety.detectors; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_empty_window_has_no_mean() -> None:
    empty = Adwin(0.002, min_length=5, grace_period=10)
    assert (empty.width, empty.mean) == (0, 0.0)
