"""What a rollout does to requests of other rules."""

from collections.abc import Sequence

from prolepsis.control.rollout.other_rules import OtherRule, other_rules
from prolepsis.control.traffic.feature import RuleTraffic
from prolepsis.control.traffic.timeline import TimelineSpan


def rule(name: str, minutes: Sequence[tuple[float, int, float]]) -> RuleTraffic:
    """`minutes`: begin, requests of ten tokens, device seconds of a token."""
    spans = [
        TimelineSpan(at=at, num_requests=number, num_output_tokens=10 * number, device_s=10 * number * seconds)
        for at, number, seconds in minutes
    ]
    return RuleTraffic(rule=name, minutes=spans)


def test_a_token_of_other_rules_is_compared_with_what_it_took_before_the_stage() -> None:
    rules = [
        rule("edits", [(0.0, 50, 0.01)]),
        rule("chat", [(0.0, 30, 0.02), (60.0, 99, 9.0), (120.0, 30, 0.03)]),
        rule("rare", [(120.0, 3, 0.01)]),
        rule("idle", []),
    ]
    found = [*other_rules(rules, "edits", since=70.0)]
    assert [(one.rule, one.num_before, one.num_since) for one in found] == [("chat", 30, 30), ("rare", 0, 3)]
    assert found[0] == OtherRule("chat", 30, 30, 0.02, 0.03)
    assert (found[1].before_s, found[1].since_s) == (None, None)
