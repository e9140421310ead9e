"""Engines that say a known text, each until its script ends it, and what a consumer must have got in the end."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from prometheus_client import CollectorRegistry

from prolepsis.core.engine_client import EngineClient, EngineHealth, EngineInfo
from prolepsis.core.errors import EngineDead, StepFailed
from prolepsis.core.events import Aborted, Event, Failed, Finished, Tokens
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import RequestStats
from tests.exact.cuts import answers_of
from tests.fake_client import INFO, FakeEngineClient
from tests.fakes import terminals

LENGTH = 6
HERE = replace(INFO, weights="w", tokenizer="t")
ELSEWHERE = replace(HERE, forward="another")
DEAD = EngineHealth(alive=False, ready=False, detail="gone")

Item = Event | float | Exception


def token(index: int, position: int) -> int:
    return 1 + (17 * index + 5 * position) % 100


def ask(request_id: str = "r", n: int = 1, **changes: object) -> GenerateRequest:
    source = GenerateRequest(request_id, (1, 2, 3), SamplingParams(seed=5), n=n)
    return replace(source, **changes)  # type: ignore[arg-type]


def speech(request: GenerateRequest) -> list[Tokens]:
    """Return what is left of the answer, a token a step, the samples in turn."""
    begun = request.continue_from.emitted if request.continue_from else ((),) * request.n
    return [
        Tokens(
            request.request_id,
            index,
            (token(index, position),),
            position=position,
            finish_reason="length" if position == LENGTH - 1 else None,
        )
        for position in range(LENGTH)
        for index in range(request.n)
        if position >= len(begun[index])
    ]


def finished(request: GenerateRequest, num_tokens: int) -> Finished:
    return Finished(request.request_id, RequestStats(num_output_tokens=num_tokens, num_steps=num_tokens))


class Speaker(FakeEngineClient):
    """Says `say` events of each answer, and then `last`; all of it if `say` is None."""

    def __init__(self, say: int | None = None, *last: Item | str, info: EngineInfo = HERE) -> None:
        super().__init__(self._speak, info)
        self.say = say
        self.last = last

    def _speak(self, request: GenerateRequest) -> Iterable[Item]:
        events = speech(request)
        if self.say is None or self.say > len(events):
            yield from events
            yield finished(request, len(events))
            return
        yield from events[: self.say]
        for item in self.last:
            yield self._named(item, request) if isinstance(item, str) else item

    def _named(self, name: str, request: GenerateRequest) -> Item:
        stats = RequestStats(num_output_tokens=self.say or 0, num_steps=self.say or 0)
        if name == "aborted":
            return Aborted(request.request_id, stats, "shutdown")
        errors = {"dead": EngineDead("the engine ended"), "step": StepFailed("a step failed")}
        return Failed(request.request_id, errors[name], stats)


class InOrder:
    """A `Router` that takes the first of the engines that have the least to do."""

    def ranked(self, request: GenerateRequest, loads: Mapping[str, int]) -> Sequence[str]:
        return sorted(loads, key=lambda name: loads[name])

    def sent(self, request: GenerateRequest, replica: str) -> None: ...


async def collect(client: EngineClient, request: GenerateRequest) -> list[Event]:
    return [event async for event in client.generate(request)]


def check_whole(events: Sequence[Event], request: GenerateRequest) -> RequestStats:
    """Prove that the consumer got the whole answer and one terminal event; return its figures."""
    answer = answers_of(events)[request.request_id]
    assert {index: sample.tokens for index, sample in answer.items()} == {
        index: tuple(token(index, position) for position in range(LENGTH)) for index in range(request.n)
    }
    assert all(sample.finish_reason == "length" for sample in answer.values())
    end = terminals(events)[request.request_id]
    assert isinstance(end, Finished)
    assert end.stats.num_output_tokens == request.n * LENGTH, "usage counts every token once"
    return end.stats


def sample(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Return the value of a series, 0 if it was never counted."""
    return registry.get_sample_value(f"prolepsis_{name}", labels) or 0.0
