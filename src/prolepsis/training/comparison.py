"""Two heads of a target side by side: how they draft for documents, how fast, and that answers stay the same."""

import time
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path

import torch

from prolepsis.core.config import CANDIDATE_HEAD, EngineConfig
from prolepsis.core.events import Aborted, Failed, Finished, Tokens
from prolepsis.core.messages import Submit
from prolepsis.core.requests import UNCOUNTED_CLASS, GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.build import assemble
from prolepsis.engine.models.heads.levels import HeadLevels, load_levels
from prolepsis.engine.models.load import load_model
from prolepsis.engine.models.targets.lean_weights import output_rows
from prolepsis.engine.step import Engine
from prolepsis.training.batches import lay_flat
from prolepsis.training.data import TrainingDocument
from prolepsis.training.evaluation import DEPTH, DocumentScore, scores
from prolepsis.training.head import read_head
from prolepsis.training.synthesis import plain
from prolepsis.training.target import Target
from prolepsis.training.unroll import unroll

_TIMED = 20
_ANSWER_TOKENS = 32


class HeadPair:
    """A head, and one that was trained from it: both draft the same tokens of the vocabulary."""

    def __init__(self, target: Target, *folders: Path) -> None:
        self._heads = [read_head(folder, target) for folder in folders]
        hidden, eps = target.shape.hidden, target.shape.eps
        stored = [load_levels(folder, hidden) for folder in folders]
        self._levels = [
            HeadLevels(levels.to(torch.float32), head.weights.norm, eps) if levels else None
            for levels, head in zip(stored, self._heads, strict=True)
        ]
        self._ends = target.ends_for(self._heads[0].weights.target_ids)
        self._whole = output_rows(target.ends, torch.arange(target.shape.vocab)).float()

    def scores(self, *documents: Iterable[TrainingDocument]) -> list[list[DocumentScore]]:
        """Return the scores of each head on its `documents`."""
        return [
            scores(head, levels, own, self._ends, self._whole)
            for head, levels, own in zip(self._heads, self._levels, documents, strict=True)
        ]

    @torch.no_grad()
    def draft_ms(self, document: TrainingDocument) -> tuple[float, float]:
        """Return the milliseconds that each takes to draft after every token of a document, at best."""
        batches = [lay_flat([document], self._ends, len(head.config.aux_layers)).flat for head in self._heads]
        best = [inf, inf]
        for _ in range(_TIMED):
            for i, (head, batch) in enumerate(zip(self._heads, batches, strict=True)):
                started = time.perf_counter()
                list(unroll(head, batch, DEPTH))
                best[i] = min(best[i], 1e3 * (time.perf_counter() - started))
        return best[0], best[1]


def answers_alike(config: EngineConfig, head: Path, prompts: Sequence[list[int]]) -> bool:
    """Return whether greedy answers to `prompts` are the same with a head's drafts and without."""
    config = plain(config, max(map(len, prompts)) + _ANSWER_TOKENS)
    own = {"num_speculative_tokens": DEPTH, "max_requests": 1, "proposers": (), "draft_head": "none"}
    config = config.model_copy(update=own)
    engine = assemble(config, load_model(config))
    plainly = [_answer(engine, prompt) for prompt in prompts]
    swap, _ = engine.load_head(str(head), CANDIDATE_HEAD)
    engine.send(swap)
    return [_answer(engine, prompt) for prompt in prompts] == plainly


def _answer(engine: Engine, prompt: Sequence[int]) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=_ANSWER_TOKENS)
    always = SpeculationChoice(mode="always", proposers=(CANDIDATE_HEAD,))
    # of no tenant: a head drafts for everybody in this class, in which no client is
    request = GenerateRequest("check", tuple(prompt), params, traffic_class=UNCOUNTED_CLASS, speculation=always)
    engine.send(Submit(request, time.monotonic()))
    answer: list[int] = []
    while True:
        for event in engine.step():
            if isinstance(event, Tokens):
                answer += event.token_ids
            if isinstance(event, Finished | Aborted | Failed):
                return answer
