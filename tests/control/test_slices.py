import re

import pytest

from prolepsis.control.facts import RequestFacts
from prolepsis.control.slices import SLICE, slice_of

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
def test_a_slice_is_route_tier_form_and_context(facts: RequestFacts, name: str) -> None:
    assert slice_of(facts) == name
    assert re.search(SLICE, name)


def test_what_a_tenant_writes_makes_no_slices() -> None:
    other = RequestFacts(route=FACTS.route, tier=FACTS.tier, prompt_tokens=3, tenant="t", model="m", headers={"x": "y"})
    assert slice_of(other) == slice_of(FACTS)
