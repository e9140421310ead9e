"""The count of a conversation's tokens is that of the request that it belongs to."""

import httpx2
import pytest

from tests.server.conftest import served
from tests.server.dialects.anthropic.test_render import BODY, ROOMY, TOOL
from tests.server.fakes import ByteTokenizer, FakeEngine


@pytest.mark.parametrize("more", [{}, {"system": "Be brief."}, {"tools": [TOOL]}, {"thinking": {"type": "enabled"}}])
def test_the_tokens_of_a_conversation_are_those_of_its_request(more: dict[str, object]) -> None:
    asked = {name: value for name, value in {**BODY, **more}.items() if name != "max_tokens"}
    with served(FakeEngine(info=ROOMY), tokenizer=ByteTokenizer("roles and text")) as running:
        counted = httpx2.post(f"{running.url}/v1/messages/count_tokens?beta=true", json=asked)
        httpx2.post(f"{running.url}/v1/messages", json={**BODY, **more})
    assert counted.json() == {"input_tokens": len(running.engine.requests[0].prompt_token_ids)}
