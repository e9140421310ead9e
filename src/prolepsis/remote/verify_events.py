"""The events of `/v1/verify/...` (docs/reference/verify.md): servers send them, clients read them."""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

import httpx2
import msgspec
from msgspec import UNSET, Struct, UnsetType

from prolepsis.core.errors import ProlepsisError


class ServerError(ProlepsisError):
    """The server refused a request, or its answer failed."""

    def __init__(self, message: str, *, code: str, status: int | None = None) -> None:
        """`status`: of HTTP; None: the answer had begun."""
        super().__init__(message)
        self.code = code
        self.status = status


class Drafting(Struct, frozen=True):
    """Whether the server takes drafts."""

    taken: bool
    reason: str | None  # reason why it takes none
    max_tokens: int  # most tokens of one draft


class Started(Struct, frozen=True, tag="started"):
    """The request is accepted: what its client drafts from."""

    id: str
    model: str
    system_fingerprint: str
    seed: int
    prompt_token_ids: tuple[int, ...]
    prompt_token_strs: tuple[str, ...]
    drafts: Drafting


class Emitted(Struct, frozen=True, tag="tokens"):
    """The next tokens of the answer."""

    position: int
    token_ids: tuple[int, ...]
    token_strs: tuple[str, ...]
    text: str
    num_accepted: int  # of these tokens, in the client's draft


class Corrected(Emitted, frozen=True, tag="corrected"):
    """The next tokens, the last of which the client's draft had otherwise."""


class DraftCounts(Struct, frozen=True):
    num_received: int
    num_late: int
    num_verified: int
    num_draft_tokens: int
    num_accepted: int


class Done(Struct, frozen=True, tag="done"):
    """The answer is complete."""

    finish_reason: str | None
    stop_reason: str | int | None
    usage: dict[str, Any]
    seed: int
    drafts: DraftCounts
    effective: dict[str, Any]  # the mode in effect, with its reason
    metrics: dict[str, Any] | UnsetType = UNSET


VerifyEvent = Started | Emitted | Corrected | Done


class _Fault(Struct):
    message: str
    code: str


class _Failed(Struct):
    """An error in OpenAI's shape."""

    error: _Fault


_EVENTS: msgspec.json.Decoder[VerifyEvent] = msgspec.json.Decoder(VerifyEvent)
_ERRORS = msgspec.json.Decoder(_Failed)


async def read_events(lines: AsyncIterable[str]) -> AsyncGenerator[VerifyEvent, None]:
    """Yield the events of a stream, the last one `Done`; raises `ServerError` if the answer fails or is cut off."""
    async for line in lines:
        name, _, data = line.partition(":")
        if name == "data":
            try:
                event: VerifyEvent = _EVENTS.decode(data)
            except msgspec.MsgspecError as error:
                try:
                    fault = _ERRORS.decode(data).error
                except msgspec.MsgspecError:
                    raise ServerError(f"an event that is none of /v1/verify: {error}", code="invalid_event") from None
                raise ServerError(fault.message, code=fault.code) from None
            yield event
            if isinstance(event, Done):
                return
    raise ServerError("the stream ended before the answer did", code="stream_cut")


def refusal_of(response: httpx2.Response) -> ServerError:
    """Return why a request was refused, maybe by what stands in front of the server, in words of its own."""
    status = response.status_code
    try:
        fault = _ERRORS.decode(response.content).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ServerError(f"refused with status {status} {response.reason_phrase}", code="refused", status=status)
    return ServerError(fault.message, code=fault.code, status=status)
