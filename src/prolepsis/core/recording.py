"""Recordings of requests, and what their replay showed: plain values for all who keep, replay or show them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import Difference, Event, Tokens
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams


@dataclass(frozen=True, slots=True)
class Recording:
    """A request with the emitted tokens of each sample."""

    request: GenerateRequest
    tokens: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + sum(map(len, self.tokens))


@dataclass(frozen=True, slots=True)
class _RecordedInputs:
    """Everything besides the model on which the tokens of a request depend, and the tokens."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    grammar: GrammarSpec | None
    tokens: tuple[tuple[int, ...], ...]


_KEPT = TypeAdapter(_RecordedInputs)


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
    kept = _RecordedInputs(request.prompt_token_ids, request.params, request.grammar, recorded.tokens)
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


Outcome = Literal["match", "near_tie", "structural"]
NUM_BEYOND = 64
"""Tokens, the first that differs among them, that a replay decodes where it leaves its recording."""


@dataclass(frozen=True, slots=True)
class Replayed:
    differences: Mapping[int, Difference]  # the first difference of each sample that has one
    tokens: tuple[tuple[int, ...], ...]  # decoded, by sample

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def outcome(self) -> Outcome:
        kinds = {difference.kind for difference in self.differences.values()}
        return "structural" if "structural" in kinds else "near_tie" if kinds else "match"

    @property
    def shown(self) -> list["SampleDifference"]:
        """The differences without tokens, in the order of the samples."""
        return [
            SampleDifference(
                sample=sample, position=first.position, kind=first.kind, margin=first.margin, tolerance=first.tolerance
            )
            for sample, first in sorted(self.differences.items())
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDifference:
    """The first difference of a sample from its recorded tokens, as it may be shown; see `core.events.Difference`."""

    sample: int
    position: int  # output position, from 0
    kind: Literal["near_tie", "structural"]
    margin: float | None
    tolerance: float | None
