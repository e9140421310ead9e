"""What a request does to its own logits and text counts where tenants share the engine."""

import pytest

from prolepsis.core.events import Tokens
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.server.admission.fair_queue import FairQueue, Waiting
from prolepsis.server.admission.group import Progress, processing_per_token

BIASED = SamplingParams(max_tokens=100, logit_bias=tuple((i, 1.0) for i in range(4096)))
SHOWN = SamplingParams(max_tokens=100, logprobs=20)
PLAIN = SamplingParams(max_tokens=100, stop=("x",))


@pytest.mark.parametrize(
    ("params", "grammar", "adds"),
    [
        (PLAIN, None, False),
        (SamplingParams(logprobs=0), None, True),
        (SamplingParams(repetition_penalty=1.1), None, True),
        (SamplingParams(), GrammarSpec("regex", "a"), True),
        (BIASED, None, True),
    ],
)
def test_own_processing_adds_to_a_token(params: SamplingParams, grammar: GrammarSpec | None, adds: bool) -> None:
    assert (processing_per_token(GenerateRequest("r", (1,), params, grammar=grammar)) > 0) == adds


def test_more_entries_cost_more() -> None:
    costs = [processing_per_token(GenerateRequest("r", (1,), SamplingParams(logprobs=k))) for k in (0, 1, 20)]
    assert costs == sorted(set(costs))


def test_a_tenant_pays_in_the_queue_for_the_processing_it_asks_for() -> None:
    queue = FairQueue()
    for tenant, params in (("plain", PLAIN), ("costly", SHOWN)):
        for _ in range(100):
            load = Progress(GenerateRequest("r", (1,), params)).load
            queue.push(Waiting(tenant, "standard", 0, load, 1, 0.0))
    served = []
    for _ in range(100):
        waiting = queue.peek()
        assert waiting is not None
        queue.start(waiting)
        served.append(waiting.tenant)
    assert served.count("plain") > 1.2 * served.count("costly")


def test_the_refund_counts_the_processing_of_emitted_tokens() -> None:
    progress = Progress(GenerateRequest("r", (1, 2), SHOWN, n=3))
    per_token = processing_per_token(progress.request)
    assert progress.load == progress.cost + 300 * per_token
    assert progress.load_used == 0
    progress.see(Tokens("r", 0, (1, 2, 3, 4), position=0))
    assert progress.load_used == progress.num_used + 4 * per_token
    assert progress.num_used == 6, "limits of rate count tokens only"
