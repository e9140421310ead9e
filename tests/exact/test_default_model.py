"""The default model: speculated tokens equal plain decoding; greedy equals transformers in float32 but at near-ties."""

import asyncio
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from prolepsis.cli.bench.ask import ask, in_flight
from prolepsis.cli.bench.prompts import encode_prompts, load_prompts
from prolepsis.cli.exact import first_difference
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.models.files.config import for_transformers
from prolepsis.models.files.store import resolve
from prolepsis.models.files.weights import open_checkpoint
from prolepsis.models.heads.registry import head_for
from prolepsis.models.load import LoadedModel
from prolepsis.sampling.sampler import Sampler, SamplingRow
from prolepsis.spec.divergence import classify
from tests.default_model import CONFIG
from tests.exact.oracle import at_any_price

pytestmark = pytest.mark.real_model
NUM_TOKENS = 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, max_tokens=NUM_TOKENS, ignore_eos=True)
KINDS = (
    GREEDY,
    SAMPLED,
    SamplingParams(temperature=1.0, top_p=0.9, seed=2, max_tokens=NUM_TOKENS, ignore_eos=True),
    SamplingParams(temperature=0.6, top_k=40, frequency_penalty=0.3, seed=3, max_tokens=NUM_TOKENS, ignore_eos=True),
    SamplingParams(temperature=0.0, repetition_penalty=1.1, max_tokens=NUM_TOKENS, ignore_eos=True),
    SamplingParams(temperature=0.7, min_p=0.05, seed=4, max_tokens=NUM_TOKENS, ignore_eos=True),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Token ids of every request, and how many of them were drafted and accepted."""

    tokens: list[tuple[int, ...]]
    num_accepted: int


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[tuple[int, ...]]:
    return [tuple(prompt.token_ids) for prompt in encode_prompts(load_prompts(None), loaded.tokenizer)]


def answers(loaded: LoadedModel, requests: list[GenerateRequest], limit: int) -> Outcome:
    async def run() -> Outcome:
        client = ThreadEngineClient(at_any_price(assemble(CONFIG, loaded, head=head_for("auto", loaded))))
        try:
            found = await in_flight([lambda r=request: ask(client, r) for request in requests], limit)  # type: ignore[misc]
        finally:
            await client.close()
        return Outcome([tuple(a.token_ids) for a in found], sum(a.stats.num_accepted for a in found))

    return asyncio.run(run())


def requests_of(prompts: list[tuple[int, ...]], *, speculate: bool) -> list[GenerateRequest]:
    choice = SpeculationChoice("auto" if speculate else "off")
    return [
        GenerateRequest(f"{speculate}-{i}-{k}", prompt, kind, cache_salt=f"{speculate}", speculation=choice)
        for i, prompt in enumerate(prompts)
        for k, kind in enumerate(KINDS)
        if k % 2 == i % 2  # prompts of a category are neighbours: together they meet all kinds
    ]


def test_mixed_requests_equal_plain_decoding(loaded: LoadedModel, strict: bool, prompts: list[tuple[int, ...]]) -> None:
    if "native" not in loaded.model.info.forward:
        pytest.skip(f"{loaded.model.info.forward} is not held to bitwise equality")
    assert strict
    plain = answers(loaded, requests_of(prompts, speculate=False), limit=16)
    speculated = answers(loaded, requests_of(prompts, speculate=True)[::-1], limit=7)
    assert sum(map(len, plain.tokens)) >= 1_500
    assert speculated.num_accepted > 60
    assert speculated.tokens[::-1] == plain.tokens


def test_greedy_equals_transformers_in_float32_but_at_near_ties(
    loaded: LoadedModel, prompts: list[tuple[int, ...]]
) -> None:
    shortest = sorted(prompts, key=len)[:4]
    requests = [GenerateRequest(f"g{i}", prompt, GREEDY) for i, prompt in enumerate(shortest)]
    ours = answers(loaded, requests, limit=4).tokens
    model, sampler = float32_model(), Sampler(loaded.model.info.vocab_size, loaded.model.info.eos_token_ids)
    for prompt, found in zip(shortest, ours, strict=True):
        logits = logits_of(model, prompt, found)
        theirs = logits.argmax(-1).tolist()
        at = first_difference(found, theirs)
        if at is not None:
            verdict = classify(logits[at], SamplingRow(GREEDY, 0, at), (theirs[at], found[at]), sampler)
            assert verdict.kind == "near_tie", f"token {at}: {verdict}"


@torch.no_grad()
def logits_of(model: PreTrainedModel, prompt: tuple[int, ...], answer: tuple[int, ...]) -> torch.Tensor:
    """Return [len(answer), vocab]: row i decides on token i of the answer, after those before it."""
    logits: torch.Tensor = model(input_ids=torch.tensor([[*prompt, *answer[:-1]]])).logits
    return logits[0, len(prompt) - 1 :].float()


def float32_model() -> PreTrainedModel:
    checkpoint = open_checkpoint(resolve(CONFIG.model), torch.float32)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(for_transformers(checkpoint.config), dtype=torch.float32)
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.tensors}, strict=False)
    model.tie_weights()
    assert isinstance(model, PreTrainedModel)
    return model.eval()
