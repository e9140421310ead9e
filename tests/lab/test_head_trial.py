"""A head from other software drafts on the shipped prompts, and what is accepted is told."""

from collections.abc import Iterable

from prolepsis.core.events import Event, Finished
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.lab.head_trial import MAX_TOKENS, PROPOSER, Trial, trial
from prolepsis.lab.measure.prompts import EncodedPrompt
from tests.fake_client import INFO, FakeEngineClient

PROMPTS = [EncodedPrompt("a", "chat", (1, 2)), EncodedPrompt("b", "code", (3,))]


def drafted(request: GenerateRequest) -> Iterable[Event]:
    assert (request.speculation.mode, request.speculation.proposers) == ("always", (PROPOSER,))
    assert (request.params.temperature, request.params.max_tokens) == (0.0, MAX_TOKENS)
    counts = {PROPOSER: ProposerCounts(10, 30, 12), "suffix": ProposerCounts(1, 1, 1)}
    yield Finished(request.request_id, RequestStats(num_output_tokens=22, proposers=counts))


async def test_the_heads_own_drafts_are_counted() -> None:
    found = await trial(FakeEngineClient(drafted, INFO), PROMPTS, "tiny")
    assert found == Trial("tiny", 2, 20, 60, 24)
    assert found.describe() == (
        "tried with tiny on 2 prompts: 40.0% of 60 draft tokens accepted, 2.20 tokens a step with a draft"
    )


def test_a_head_that_drafts_nothing_says_so() -> None:
    assert Trial("tiny", 2, 0, 0, 0).describe() == "tried with tiny on 2 prompts: it drafted nothing"
