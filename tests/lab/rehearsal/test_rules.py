"""The rules that a forecast recommends decide for each traffic class, and for no request of another one."""

import pytest

from prolepsis.control.policy.check import NOTHING_KNOWN, usable_policy
from prolepsis.core.facts import RequestFacts, traffic_class_of
from prolepsis.lab.rehearsal.forecast import ClassGain
from prolepsis.lab.rehearsal.page import class_row, mode_for, policy_text

CHAT = RequestFacts(route="/v1/chat/completions", tier="standard", prompt_tokens=512)
LONG = RequestFacts(route="/v1/chat/completions", tier="standard", prompt_tokens=5000)
TOOLS = RequestFacts(route="/v1/responses", tier="batch", prompt_tokens=600, tools=True)
FASTER, AS_FAST, SLOWER = (ClassGain(4, share, speedup) for share, speedup in ((1.0, 1.5), (0.25, 1.0), (0.0, 0.8)))


@pytest.mark.parametrize(
    ("gains", "mode"),
    [([FASTER], "on"), ([FASTER, SLOWER, FASTER], "on"), ([AS_FAST], "off"), ([AS_FAST, FASTER, SLOWER], "off")],
)
def test_a_class_speculates_if_it_gains_in_most_forecasts(gains: list[ClassGain], mode: str) -> None:
    assert mode_for(gains) == mode


def test_a_row_shows_the_least_and_the_most() -> None:
    assert class_row("a", [FASTER, SLOWER]) == ["a", "4", "0 – 100 %", "0.80 – 1.50", "on"]


def test_the_policy_can_be_used_and_tells_the_classes_apart() -> None:
    gains = ((CHAT, FASTER), (LONG, SLOWER), (TOOLS, FASTER))
    classes = {traffic_class_of(facts): [gain] for facts, gain in gains}
    policy = usable_policy(policy_text([CHAT, LONG, TOOLS, CHAT], classes), "rehearsed", NOTHING_KNOWN)

    def mode(facts: RequestFacts) -> str:
        rule = policy.rule_for(facts)
        return rule.terms.mode if rule else "default"

    assert [mode(facts) for facts in (CHAT, LONG, TOOLS)] == ["on", "off", "on"]
    schema = RequestFacts(route="/v1/responses", tier="batch", prompt_tokens=600, structured_output="json_schema")
    assert mode(schema) == "on", "of the same class, which has two forms"
    for other in (
        RequestFacts(route="/v1/responses", tier="batch", prompt_tokens=600),
        RequestFacts(route="/v1/chat/completions", tier="batch", prompt_tokens=512),
        RequestFacts(route="/v1/chat/completions", tier="standard", prompt_tokens=513),
    ):
        assert mode(other) == "default"
