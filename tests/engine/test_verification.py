"""Verification of a step: an answer whose logits are no numbers fails alone."""

import math

import pytest
from torch import Tensor

from prolepsis.core.errors import NotFinite
from prolepsis.core.events import Failed, Finished
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.verification import Verification
from prolepsis.models.protocol import Batch, KVCache
from prolepsis.sampling.sampler import Sampler
from tests.fakes import EOS, VOCAB, EngineSetup, TableModel, build, outputs, request, run, terminals

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
