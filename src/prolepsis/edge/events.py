"""The events of `/v1/verify/...` as clients read them (docs/reference/verify.md)."""

import json
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from prolepsis.core.errors import ProlepsisError


class ServerError(ProlepsisError):
    """The server refused a request, or its answer failed."""

    def __init__(self, message: str, *, code: str, status: int | None = None) -> None:
        """`status`: of HTTP; None: the answer had begun."""
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class Started:
    """The request is accepted: what its client drafts from."""

    id: str
    seed: int
    prompt_token_ids: tuple[int, ...]
    prompt_token_strs: tuple[str, ...]
    refusal: str | None
    """Reason why no draft is taken; None: drafts are taken."""
    max_draft_tokens: int
    """Most tokens of one draft."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """The next tokens of the answer; an event `corrected` is one of these."""

    position: int
    token_ids: tuple[int, ...]
    token_strs: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is complete."""

    finish_reason: str | None
    document: Mapping[str, Any]
    """The whole event: usage, what became of the drafts, the mode in effect."""


VerifyEvent = Started | Emitted | Done


async def read_events(lines: AsyncIterable[str]) -> AsyncGenerator[VerifyEvent, None]:
    """Yield the events of a stream, the last one `Done`; raises `ServerError` if the answer fails or is cut off."""
    async for line in lines:
        name, _, data = line.partition(":")
        if name == "data":
            event = _event(json.loads(data))
            yield event
            if isinstance(event, Done):
                return
    raise ServerError("the stream ended before the answer did", code="stream_cut")


def refusal_of(response: httpx.Response) -> ServerError:
    """Return why a request was refused, maybe by what stands in front of the server, in words of its own."""
    status = response.status_code
    try:
        return _error_of(response.json(), status)
    except (ValueError, KeyError, TypeError):
        return ServerError(f"refused with status {status} {response.reason_phrase}", code="refused", status=status)


def _error_of(document: Mapping[str, Any], status: int | None = None) -> ServerError:
    """Return an error in OpenAI's shape as an exception."""
    error = document["error"]
    return ServerError(error["message"], code=error["code"], status=status)


def _event(document: Mapping[str, Any]) -> VerifyEvent:
    if "error" in document:
        raise _error_of(document)
    if document["type"] == "started":
        drafts = document["drafts"]
        return Started(
            document["id"],
            document["seed"],
            tuple(document["prompt_token_ids"]),
            tuple(document["prompt_token_strs"]),
            drafts["reason"],
            drafts["max_tokens"],
        )
    if document["type"] == "done":
        return Done(document["finish_reason"], document)
    return Emitted(document["position"], tuple(document["token_ids"]), tuple(document["token_strs"]), document["text"])
