"""Recordings of requests, and their replay: the request is decoded again without speculation and compared."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from prolepsis.core.errors import EngineError, InvalidParameter
from prolepsis.core.events import Aborted, Difference, Event, Failed, Tokens
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.engine.client import EngineClient


@dataclass(frozen=True, slots=True)
class Recording:
    """A request with the emitted tokens of each sample."""

    request: GenerateRequest
    tokens: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + sum(map(len, self.tokens))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Everything besides the model on which the tokens of a request depend, and the tokens."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    grammar: GrammarSpec | None
    tokens: tuple[tuple[int, ...], ...]


_KEPT = TypeAdapter(_Kept)


def recording(request: GenerateRequest, events: Iterable[Event]) -> Recording:
    """Return the recording of a request's events so far."""
    tokens: list[list[int]] = [[] for _ in range(request.n)]
    for event in events:
        if isinstance(event, Tokens):
            tokens[event.index] += event.token_ids
    return Recording(request, tuple(map(tuple, tokens)))


def plain(recorded: Recording) -> dict[str, object]:
    """Return a recording as plain JSON values, without names of persons."""
    request = recorded.request
    kept = _Kept(request.prompt_token_ids, request.params, request.grammar, recorded.tokens)
    shown: dict[str, object] = _KEPT.dump_python(kept, mode="json")
    return shown


def parse(value: object, request_id: str) -> Recording:
    """Return the recording of plain JSON values; raises `InvalidParameter` if they are damaged."""
    try:
        kept = _KEPT.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidParameter(f"the recording is damaged: {where} {first['msg'].lower()}", param=where) from None
    request = GenerateRequest(
        request_id, kept.prompt_token_ids, kept.params, n=max(1, len(kept.tokens)), grammar=kept.grammar
    )
    return Recording(request, kept.tokens)


LAST = 2**31 - 1
"""Priority of replays: all other requests run first, and preempt them."""
Outcome = Literal["match", "near_tie", "structural"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    differences: Mapping[int, Difference]
    """The first difference of each sample that has one."""
    num_tokens: int
    """Tokens decoded."""

    @property
    def outcome(self) -> Outcome:
        kinds = {difference.kind for difference in self.differences.values()}
        return "structural" if "structural" in kinds else "near_tie" if kinds else "match"

    @property
    def first(self) -> tuple[int, Difference] | None:
        """Sample and difference to report: a structural one if there is one."""
        found = sorted(self.differences.items(), key=lambda item: (item[1].kind != "structural", item[0]))
        return found[0] if found else None


async def replay(client: EngineClient, recorded: Recording, request_id: str) -> Replayed:
    """Decode a recorded request again without speculation, at the lowest priority, and compare token by token.

    The same prompt, seed, sampling, grammar and stops; no cached results are reused. A cancellation
    aborts it. Raises the engine's errors, and `EngineError` if it was aborted.
    """
    source = replace(
        recorded.request,
        request_id=request_id,
        params=replace(recorded.request.params, logprobs=None),
        priority=LAST,
        deadline_s=None,
        traffic_class="",
        prediction_token_ids=(),
        speculation=SpeculationChoice("off"),
        emitted=recorded.tokens,
    )
    lengths, differences = [0] * source.n, dict[int, Difference]()
    events = client.generate(source)
    try:
        async for event in events:
            if isinstance(event, Tokens):
                lengths[event.index] += len(event.token_ids)
                if event.difference is not None:
                    differences[event.index] = event.difference
            elif isinstance(event, Failed):
                raise event.error
            elif isinstance(event, Aborted):
                raise EngineError(f"the replay was aborted: {event.reason}")
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    for index, (length, before) in enumerate(zip(lengths, recorded.tokens, strict=True)):
        if index not in differences and length < len(before):
            differences[index] = Difference(length, before[length], None, "structural")
    return Replayed(differences, sum(lengths))
