import re

import pytest

from prolepsis.core.facts import NO_RULE, TRAFFIC_CLASS, RequestFacts, rule_of_class, traffic_class_of

FACTS = RequestFacts(route="/v1/chat/completions", tier="standard", prompt_tokens=512)


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (FACTS, "chat-completions/standard/free/short"),
        (RequestFacts(route="/v1/completions", tier="batch", prompt_tokens=513), "completions/batch/free/medium"),
        (
            RequestFacts(route="/v1/responses", tier="economy", tools=True, prompt_tokens=4097),
            "responses/economy/structured/long",
        ),
        (RequestFacts(structured_output="regex"), "none/none/structured/short"),
    ],
)
def test_a_traffic_class_is_route_tier_form_and_context(facts: RequestFacts, name: str) -> None:
    assert traffic_class_of(facts) == name
    assert re.search(TRAFFIC_CLASS, name)


def test_texts_of_tenants_make_no_traffic_classes() -> None:
    other = RequestFacts(route=FACTS.route, tier=FACTS.tier, prompt_tokens=3, tenant="t", model="m", headers={"x": "y"})
    assert traffic_class_of(other) == traffic_class_of(FACTS)


def test_a_rule_of_the_policy_tells_apart_what_tenants_and_headers_do() -> None:
    name = traffic_class_of(FACTS, "edits")
    assert name == "chat-completions/standard/free/short/edits"
    assert re.search(TRAFFIC_CLASS, name)
    assert (rule_of_class(name), rule_of_class(traffic_class_of(FACTS))) == ("edits", NO_RULE)
