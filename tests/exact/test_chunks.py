"""Where a prompt is cut into chunks changes no output, on the real forward."""

from collections.abc import Sequence

import pytest

from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.build import assemble
from tests.exact.oracle import CONFIG, PROMPT, ask, plain, serve, target
from tests.fakes import outputs

PROMPTS = (PROMPT, PROMPT[::-1], PROMPT[5:40], PROMPT[30:33])


@pytest.mark.parametrize("limit_ms", [1e-6, 0.3])
def test_prompts_next_to_streams_are_read_in_small_chunks_with_the_same_outputs(limit_ms: float) -> None:
    engine = assemble(CONFIG.model_copy(update={"chunk_limit_ms": limit_ms}), target())
    asked: Sequence[GenerateRequest] = [
        ask(name, f"{name} {i}", prompt=prompt) for i, prompt in enumerate(PROMPTS) for name in ("greedy", "sampled")
    ]
    texts = outputs(serve(engine, *asked))
    assert any(one.num_sequences < one.num_tokens < CONFIG.max_step_tokens for one in engine.timings.last)
    for source in asked:
        name = source.request_id.split()[0]
        assert texts[source.request_id, 0] == plain(name, prompt=source.prompt_token_ids)[0]
