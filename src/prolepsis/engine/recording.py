"""What is kept of a request so that it can be decoded again: as values, and as plain JSON."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import Event, Tokens
from prolepsis.core.grammar import GrammarSpec
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Recording:
    """A request and what was emitted for it, sample by sample."""

    request: GenerateRequest
    tokens: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids) + sum(map(len, self.tokens))


@dataclass(frozen=True, slots=True)
class _Kept:
    """All that the tokens of a request depend on, beside the model; and the tokens."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    grammar: GrammarSpec | None
    tokens: tuple[tuple[int, ...], ...]


_KEPT = TypeAdapter(_Kept)


def recording(request: GenerateRequest, events: Iterable[Event]) -> Recording:
    """Return what was emitted for a request so far."""
    tokens: list[list[int]] = [[] for _ in range(request.n)]
    for event in events:
        if isinstance(event, Tokens):
            tokens[event.index] += event.token_ids
    return Recording(request, tuple(map(tuple, tokens)))


def plain(recorded: Recording) -> dict[str, object]:
    """Return a recording as plain JSON values; of the request all that its tokens depend on, and no names."""
    request = recorded.request
    kept = _Kept(request.prompt_token_ids, request.params, request.grammar, recorded.tokens)
    shown: dict[str, object] = _KEPT.dump_python(kept, mode="json")
    return shown


def parse(value: object, request_id: str) -> Recording:
    """Return the recording that plain JSON values are; raises `InvalidParameter` where they are none."""
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
