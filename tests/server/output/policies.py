"""Output policies for tests, and an answer that goes through a pipeline in steps of any size."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prolepsis.core.events import FinishReason, TokenLogprobs, Tokens
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.text.stream import StopStrings
from prolepsis.server.output.delivery import Delivery
from prolepsis.server.output.filtered import FilteredSample
from prolepsis.server.output.pipeline import LoadedPolicy, OutputMetrics, OutputPolicies
from prolepsis.server.output.policy import AnswerFacts, AnswerReader, OutputPolicy, TextDecision
from prolepsis.server.text.deltas import ChoiceText, Delta
from tests.server.fakes import END, ByteTokenizer

FACTS = AnswerFacts("r", 0, "/v1/completions", "acme", "standard", "k", "tiny", structured=False)


Look = Callable[[str, bool], TextDecision]
"""Decides about pending text; whether the answer has ended."""


@dataclass
class Says:
    """Asks a function for each decision."""

    decide: Look
    inline: bool = True

    def begin(self, answer: AnswerFacts) -> AnswerReader | None:
        return self

    def look(self, pending: str, *, ended: bool) -> TextDecision:
        return self.decide(pending, ended)


def loaded(
    policy: OutputPolicy, *, fails_open: bool = False, timeout_s: float = 1.0, max_held: int = 4096, name: str = "one"
) -> LoadedPolicy:
    return LoadedPolicy(name, policy, "open" if fails_open else "closed", 1000 * timeout_s, max_held)


@dataclass
class Delivered:
    """What the client of one answer got."""

    deltas: list[Delta]
    delivery: Delivery
    num_tokens: int

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def logprob_texts(self) -> list[str]:
        return [shown.text for delta in self.deltas for shown in delta.logprobs or ()]

    @property
    def ending(self) -> tuple[object, object]:
        return self.deltas[-1].finish_reason, self.deltas[-1].stop_reason


def deliver(
    text: str,
    *policies: LoadedPolicy,
    step: int = 1,
    stop: tuple[str, ...] = (),
    metrics: OutputMetrics | None = None,
) -> Delivered:
    """Return what a client gets of `text`, a token a byte, in steps of so many, all of them drafted and accepted."""
    delivery = Delivery()
    filtered = FilteredSample(OutputPolicies(policies, metrics).pipeline(FACTS), delivery.lost)
    return asyncio.run(_deliver(text, step, stop, filtered, delivery))


async def _deliver(
    text: str, step: int, stop: tuple[str, ...], filtered: FilteredSample, delivery: Delivery
) -> Delivered:
    request = GenerateRequest("r", (1,), SamplingParams(stop=stop, logprobs=0))
    choice = ChoiceText(0, request, ByteTokenizer(), StopStrings.of(stop))
    deltas = []
    tokens = [*text.encode(), END]
    for start in range(0, len(tokens), step):
        ids = tuple(tokens[start : start + step])
        reason: FinishReason | None = "stop" if start + step >= len(tokens) else None
        logprobs = tuple(TokenLogprobs(-0.25) for _ in ids)
        event = Tokens("r", 0, ids, start, logprobs, reason, accepted_by=("suffix",) * len(ids))
        delivery.see(event)
        delta = choice.take(event)
        shown = None if delta is None else await filtered.take(delta)
        if shown is not None:
            delivery.passed(shown)
            deltas.append(shown)
        if filtered.stopped or choice.finished:
            break
    return Delivered(deltas, delivery, filtered.num_tokens)
