"""Verification of a step: an answer whose logits are no numbers fails alone."""

import math
from bisect import bisect_right
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from prolepsis.core.errors import NotFinite
from prolepsis.core.events import Failed, Finished
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import chain
from prolepsis.engine.drafting.verify import VerifyResult
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.verification import Verification, num_usable
from tests.fake_proposer import Scripted
from tests.fakes import EOS, VOCAB, EngineSetup, TableCache, TableModel, build, outputs, request, run, terminals

DAMAGED = 7


class DamagedModel(TableModel):
    """Computes no numbers for rows whose token is `DAMAGED`."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        logits = super().forward(batch, cache)
        logits[batch.token_ids[batch.logit_rows.long()] == DAMAGED] = math.nan
        return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_logits_that_are_no_numbers_fail_their_request_alone(temperature: float, logprobs: int | None) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=5, ignore_eos=True, logprobs=logprobs)
    verifier = Verification(Sampler(VOCAB, (EOS,)), max_model_len=256)
    engine = build(EngineSetup(model=DamagedModel(), verifier=verifier))
    forbidden = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logit_bias=((DAMAGED, -100.0),))
    events = run(engine, request("damaged", [1, DAMAGED], params), request("whole", [1, 2], forbidden))
    ends = terminals(events)
    failed = ends["damaged"]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NotFinite)
    assert isinstance(ends["whole"], Finished)
    assert len(outputs(events)["whole", 0]) == 5


class Counting(DamagedModel):
    """Says 3, 4 and `DAMAGED` after 1."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        logits = super().forward(batch, cache)
        for i, token in enumerate(batch.token_ids[batch.logit_rows.long()].tolist()):
            logits[i, {1: 3, 3: 4, 4: DAMAGED}.get(token, EOS)] += 100.0
        return logits


class SpoiltCache(TableCache):
    """Pages with what is no number: where a `DAMAGED` token was written, until they are cleared."""

    @property
    def spoilt(self) -> set[int]:
        return {i // PAGE_SIZE for i, (token, _) in enumerate(self.slots) if token == DAMAGED}


class PoisonedModel(DamagedModel):
    """Sums over whole pages, so that one that stores what is no number spoils the rows of all that hold it."""

    def make_cache(self, num_pages: int) -> SpoiltCache:
        return SpoiltCache(num_pages)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        assert isinstance(cache, SpoiltCache)
        logits = super().forward(batch, cache)
        starts = batch.starts.tolist()
        for i, row in enumerate(batch.logit_rows.tolist()):
            pages = batch.pages[bisect_right(starts, row) - 1]
            if cache.spoilt & set(pages.tolist()):
                logits[i] = math.nan
        return logits


@pytest.mark.parametrize(
    ("prompt", "bias", "n"), [([DAMAGED] * 3 * PAGE_SIZE, -100.0, 1), ([1] * (PAGE_SIZE + 9), 100.0, 2)]
)
def test_pages_of_a_request_whose_logits_are_no_numbers_are_cleared_before_others_get_them(
    prompt: list[int], bias: float, n: int
) -> None:
    verifier = Verification(Sampler(VOCAB, (EOS,)), max_model_len=128)
    engine = build(EngineSetup(model=PoisonedModel(), verifier=verifier, num_pages=4, max_model_len=128))
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logit_bias=((DAMAGED, bias),))
    assert isinstance(terminals(run(engine, request("damaged", prompt, params, n=n)))["damaged"], Failed)
    whole = replace(params, logit_bias=((DAMAGED, -100.0),))
    ends = terminals(run(engine, *(request(str(i), [1, 2, i], whole) for i in range(3))))
    assert all(isinstance(end, Finished) for end in ends.values())


class Elsewhere(Tensor):
    """Logits that say that they are on another device."""

    is_cpu = False


@pytest.mark.parametrize("kind", [Tensor, Elsewhere])
@pytest.mark.parametrize("native", [True, False])
def test_each_result_is_told_by_the_rows_of_its_own_tokens(kind: type[Tensor], native: bool) -> None:
    logits = torch.zeros(7, VOCAB)
    logits[3, 7] = math.nan
    logits[4, 1] = math.inf
    logits[5, 2:] = -math.inf
    logits[6] = -math.inf
    sampler, given = Sampler(VOCAB, (EOS,), native=native), logits.as_subclass(kind)

    def told(*results: VerifyResult) -> list[int]:
        return num_usable(results, given, sampler)

    results = [VerifyResult((1, 2), (0,)), VerifyResult((), ()), VerifyResult((6, 7), (0,), first_row=2)]
    assert told(*results) == [2, 0, 1]
    assert told(VerifyResult((6, 5), (0,), first_row=2)) == [1], "another token of the row is none"
    assert [told(VerifyResult((1,), (), first_row=row)) for row in (4, 5, 6)] == [[0], [1], [0]]
    assert told(VerifyResult((3,), (), first_row=5)) == [0], "a grammar leaves only a token that the model rules out"
    assert told() == [], "a step that only reads prompts"


@pytest.mark.parametrize("drafted", [True, False])
def test_drafts_change_no_token_before_the_one_without_numbers(drafted: bool) -> None:
    """The answer is 3 4 7, and no number comes after `DAMAGED`: both decode these three, then fail."""
    verifier = Verification(Sampler(VOCAB, (EOS,)), max_model_len=256)
    script = Scripted(lambda view, _: chain((4, DAMAGED, 5)[len(view.tokens) - 2 :], "scripted"))
    proposers = [script] if drafted else []
    engine = build(EngineSetup(model=Counting(), verifier=verifier, proposers=proposers))
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    events = run(engine, request("a", [1], params))
    assert outputs(events)["a", 0] == [3, 4, DAMAGED]
    failed = terminals(events)["a"]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NotFinite)
    assert (failed.stats.num_accepted > 0) == drafted
