import re

import pytest

from prolepsis.core.facts import (
    NO_RULE,
    TRAFFIC_CLASS,
    RequestFacts,
    parts_of_class,
    rule_of_class,
    traffic_class_of,
    wider_classes,
)

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


def test_domain_and_language_are_parts_behind_the_rule() -> None:
    parts = {"domain": "medical", "language": "de"}
    name, short = traffic_class_of(FACTS, None, parts), "chat-completions/standard/free/short"
    assert name == f"{short}/default/domain=medical/language=de"
    assert (rule_of_class(name), parts_of_class(name)) == (NO_RULE, parts)
    assert re.search(TRAFFIC_CLASS, name)
    assert parts_of_class(f"{short}/edits") == parts_of_class("") == {}
    only = traffic_class_of(FACTS, "edits", {"language": "pt-BR"})
    assert (rule_of_class(only), parts_of_class(only)) == ("edits", {"language": "pt-BR"})
    assert not re.search(TRAFFIC_CLASS, f"{short}/language=de")
    assert list(wider_classes(name)) == [short, f"{short}/default", f"{short}/default/domain=medical", name]
