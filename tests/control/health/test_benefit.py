"""What a proposer brings, watched over all requests that may speculate, with a draft or without."""

import random

import pytest

from prolepsis.control.health.benefit import Benefits
from prolepsis.control.health.drift import DriftAlarm
from prolepsis.control.statistics.change import MeanState
from prolepsis.core.ended import RequestEnded
from tests.control.health.ended import TRAFFIC_CLASS, ended

HEAD = ("draft_head", TRAFFIC_CLASS)


def seen(benefits: Benefits, number: int, request: RequestEnded) -> list[DriftAlarm]:
    return [alarm for i in range(number) for alarm in benefits.see(request, float(i))]


def learned(share: int = 4) -> Benefits:
    benefits = Benefits()
    assert seen(benefits, 300, ended({"draft_head": share})) == []
    return benefits


def test_a_benefit_that_is_gone_is_reported_once_within_minutes_at_a_request_a_second() -> None:
    benefits = learned()
    [alarm] = seen(benefits, 300, ended(reason="too_costly"))
    assert (alarm.kind, alarm.proposer, alarm.version) == ("benefit_gone", "draft_head", "")
    assert alarm.before == pytest.approx(0.4, abs=0.05)
    assert alarm.after == 0.0
    assert alarm.at < 120.0


def test_a_benefit_that_is_gone_is_back_with_its_cause() -> None:
    """The alert stayed an hour after the proposer was repaired, and what it brought meanwhile became its benefit."""
    benefits = learned()
    seen(benefits, 1000, ended(reason="too_costly"))
    assert benefits.gone(1000.0) == {HEAD: True}
    assert benefits.share(HEAD) == pytest.approx(0.4, abs=0.05)
    assert seen(benefits, 60, ended({"draft_head": 4})) == []
    assert benefits.gone(60.0) == {HEAD: False}
    assert len(seen(benefits, 300, ended())) == 1


def test_a_benefit_of_which_few_requests_tell_is_not_called_gone() -> None:
    benefits = learned()
    seen(benefits, 300, ended())
    assert benefits.gone(300.0 + 899.0 - 20.0) == {HEAD: True}
    assert benefits.gone(300.0 + 900.0) == {HEAD: False}


def test_a_benefit_is_learned_again_where_an_operator_says_so() -> None:
    benefits = learned()
    seen(benefits, 300, ended())
    benefits.forget(HEAD)
    assert benefits.gone(300.0) == {HEAD: False}
    assert seen(benefits, 300, ended({"draft_head": 1})) == []


def test_half_of_it_is_still_a_benefit_and_more_is_learnt_quietly() -> None:
    benefits = learned()
    assert seen(benefits, 2000, ended({"draft_head": 3})) == []
    assert seen(benefits, 2000, ended({"draft_head": 8})) == []
    assert benefits.share(HEAD) == pytest.approx(0.8)


def test_where_there_was_none_none_can_go() -> None:
    benefits = Benefits()
    seen(benefits, 300, ended({"draft_head": 0}))
    assert seen(benefits, 1000, ended()) == []


def test_requests_that_could_not_speculate_show_nothing() -> None:
    benefits = learned()
    for request in (
        ended(mode="off"),
        ended(mode="shadow"),
        ended(proposers=("suffix",)),
        ended(reason="killed"),
        ended(reason="overload_plain"),
    ):
        assert seen(benefits, 500, request) == []


def test_a_restart_goes_on() -> None:
    states = {key: MeanState.from_json(state.to_json()) for key, state in learned().states().items()}
    again = Benefits()
    again.restore(states)
    assert len(seen(again, 300, ended())) == 1


def test_benefits_that_vary_from_request_to_request_raise_no_alarm() -> None:
    benefits, chance = Benefits(), random.Random(2)
    for i in range(10_000):
        assert benefits.see(ended({"draft_head": chance.choice((0, 0, 1, 3, 5))}), float(i)) == []
