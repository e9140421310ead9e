"""What the APIs of upstream engines have in common: what one is asked, and what it says, chunk by chunk."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from prolepsis.core.events import FinishReason, TokenLogprobs
from prolepsis.core.requests import GrammarSpec, SamplingParams, shaping
from prolepsis.core.stats import ProposerCounts

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class UpstreamCall:
    """One sample of a request."""

    model: str
    token_ids: tuple[int, ...]  # the prompt, and behind it what another pool had emitted
    params: SamplingParams  # its limits count from there on
    grammar: GrammarSpec | None = None
    priority: int = 0  # lower goes first
    cache_salt: str = ""
    """A hash; nothing that the engine caches may be shared with another one. Empty: with those without one."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What an engine says at once."""

    token_ids: tuple[int, ...] = ()
    text: str = ""  # that the tokens add, as the engine decodes them
    finish: FinishReason | None = None
    drafts: ProposerCounts | None = None  # of the whole sample, with its end; None: nothing is said of drafts
    num_cached_tokens: int = 0  # of the prompt, where it is said
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of each token, where they were asked for; the likeliest may be one more than asked, which is the token itself."""


class UpstreamFault(Exception):
    """An engine says that it failed, or says what its API does not."""


class UpstreamMalformed(UpstreamFault):
    """It says what its API does not."""


class ChunkReader(Protocol):
    """Reads the chunks of one sample."""

    def read(self, data: Json) -> Chunk:
        """Return what one event says; raises `UpstreamFault`."""


class Api(Protocol):
    """The API of one kind of engine: plain values in, plain values out."""

    path: str

    def body(self, ask: UpstreamCall) -> Json:
        """Return what to post for a stream with token ids."""

    def reader(self) -> ChunkReader: ...


def sampling_fields(params: SamplingParams) -> dict[str, Any]:
    """Return the part of a body that vLLM and SGLang read alike."""
    fields: dict[str, Any] = {
        **shaping(params),
        "top_p": params.nucleus,
        "ignore_eos": params.ignore_eos,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
    }
    if params.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    return fields


def finish_reason(said: object) -> FinishReason | None:
    """Return the end that vLLM and SGLang say; None: the sample goes on. Only what they call a stop is one.

    Raises `UpstreamFault` where they gave it up, and `TypeError` for another type.
    """
    if not isinstance(said, str | None):
        raise TypeError(f"the finish reason is {said!r:.80}")
    if said in ("abort", "error"):
        raise UpstreamFault("gave it up")
    return None if said is None else "stop" if said == "stop" else "length"


def by_position(num_drafts: int, histograms: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return `ProposerCounts.per_position` of drafts; empty where the histograms have more than there were.

    `histograms`: one for each length of drafts; entry j is the number of them with j accepted tokens, the last entry
    that of drafts accepted whole.
    """
    positions: list[list[int]] = []
    for histogram in histograms:
        drafts, *at_least = [*accumulate(reversed(histogram))][::-1] or [0]
        for j, accepted in enumerate(at_least):
            if j == len(positions):
                positions.append([0, 0])
            positions[j][0] += drafts
            positions[j][1] += accepted
    return positions if all(first <= num_drafts for first, _ in positions[:1]) else []


def payload(line: str) -> Json | None:
    """Return the data of one line of a stream of server-sent events, None for another line and the last one.

    Raises `UpstreamFault` where it is no JSON object, or says that the engine failed.
    """
    name, _, text = line.partition(":")
    if name not in ("data", "error") or (text := text.strip()) == "[DONE]":
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise UpstreamMalformed(f"said {text[:200]!r}, which is no JSON") from None
    if not isinstance(data, dict):
        raise UpstreamMalformed(f"said {text[:200]!r}; expected: a JSON object")
    if name == "error" or "error" in data:
        raise UpstreamFault(f"failed: {error_message(data)}")
    return data


def error_message(data: Json) -> str:
    """Return the message of an error as OpenAI's API and its kin write it."""
    error = data.get("error", data)
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or data)[:500].encode(errors="replace").decode()
