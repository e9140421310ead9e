"""What is said of a stage that cannot come to a verdict in its time."""

from dataclasses import replace

from prolepsis.control.rollout.machine import verdict_on
from prolepsis.control.rollout.promotion import outlook
from tests.control.rollout.rollout import SETTINGS, counts, running_in

HALF = running_in(2)


def seen(errors: float, number: int, now: float) -> list[str]:
    return outlook(HALF, verdict_on(HALF, counts(2, errors, num_canary=number), SETTINGS), SETTINGS, now)


def test_a_guardrail_at_its_margin_can_neither_pass_nor_fail() -> None:
    [text] = seen(0.05, 200, 60.0)
    assert text.startswith("errors can neither pass nor fail in the 40 s left, after which the rollout is held: ")
    assert text.endswith("with requests like these")


def test_one_that_is_on_its_way_and_one_of_few_requests_say_nothing() -> None:
    assert seen(0.0, 60, 50.0) == []
    assert seen(0.05, 5, 50.0) == []


def test_the_end_of_its_time_comes_first() -> None:
    [text] = seen(0.0, 30, 95.0)
    assert "a verdict takes about" in text


def test_only_a_stage_that_runs_has_an_end() -> None:
    evidence = counts(2, 0.05, num_canary=200)
    held = replace(HALF, phase="held")
    assert outlook(held, verdict_on(held, evidence, SETTINGS), SETTINGS, 60.0) == []
    assert outlook(HALF, None, SETTINGS, 60.0) == []
