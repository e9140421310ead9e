"""Every failure in OpenAI's shape, {"error": {"message", "type", "param", "code"}}, or in that of its route."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from prolepsis.core.errors import (
    AnswerBroken,
    ContextTooLong,
    DeadlineExceeded,
    EngineDead,
    EngineError,
    GrammarFailed,
    ModelNotFound,
    OtherExactGroup,
    ProlepsisError,
    RolloutConflict,
    RolloutNotFound,
    StoreConflict,
    StoreUnavailable,
    UpstreamInvalid,
    UpstreamUnavailable,
    UserError,
)
from prolepsis.core.files import NO_SPACE

CLIENT_CLOSED_REQUEST = 499  # for logs and counters only: the client is gone and reads no status
_RETRY_AFTER_S = 5  # stated in every 503 without a better estimate

_TEXT = {"type": "string"}
ERROR_SCHEMA = {
    "title": "Error",
    "description": "Every reply with a status of 400 and above.",
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"anyOf": [_TEXT, {"type": "null"}]},
                "code": _TEXT,
            },
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}
"""`RequestRefused.body` in the OpenAPI document."""

log = structlog.get_logger(__name__)


class RequestRefused(UserError):
    """An error as it goes out in OpenAI's shape; raised where a request is refused. Its message holds no internals."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        param: str | None = None,
        status: int = 400,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`kind`: OpenAI's `type` where it is not the status's usual one."""
        super().__init__(message, param=param)
        self.code = code
        self.status = status
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, object]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, shape: "ErrorShape | None" = None) -> JSONResponse:
        """Return the reply, in OpenAI's shape or another."""
        headers = {"x-should-retry": "false"} if self.status in (500, 504) else {}
        if self.status == 503:
            headers["retry-after"] = str(_RETRY_AFTER_S)
        return JSONResponse((shape or OPENAI_ERRORS).body(self), self.status, headers={**headers, **self.headers})

    def last_reply(self) -> bytes:
        """Return the whole reply as HTTP/1.1, after which the connection ends."""
        reply = self.response()
        reply.headers["connection"] = "close"
        lines = [f"HTTP/1.1 {reply.status_code} {HTTPStatus(reply.status_code).phrase}".encode()]
        lines += [name + b": " + value for name, value in reply.raw_headers]
        return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(reply.body)


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The form in which an API writes its errors."""

    name: str  # name of the schema in the OpenAPI document
    schema: Mapping[str, object]
    body: Callable[[RequestRefused], Mapping[str, object]]


OPENAI_ERRORS = ErrorShape("Error", ERROR_SCHEMA, lambda refused: refused.body)
ERROR_SHAPE = "error_shape"
"""Where the shape of a request's route stands in its scope's state; there is none where no route is known."""


def shape_of(scope: Scope) -> ErrorShape:
    """Return the shape in which a request's errors go out."""
    shape: ErrorShape = scope.get("state", {}).get(ERROR_SHAPE, OPENAI_ERRORS)
    return shape


def error_response(error: Exception, scope: Scope) -> JSONResponse:
    """Return the reply to a request that failed."""
    return describe_error(error).response(shape_of(scope))


class RequestAborted(EngineError):
    """The engine ended a request that its client still waits for, such as at shutdown."""

    code = "request_aborted"


_STATUS: tuple[tuple[type[ProlepsisError], int], ...] = (
    (ModelNotFound, 404),
    (RolloutNotFound, 404),
    (RolloutConflict, 409),
    (OtherExactGroup, 409),
    (StoreConflict, 409),
    (ContextTooLong, 400),
    (UserError, 400),
    (DeadlineExceeded, 504),
    (EngineDead, 503),
    (UpstreamUnavailable, 503),
    (AnswerBroken, 422),
    (GrammarFailed, 400),
    (UpstreamInvalid, 502),
    (RequestAborted, 503),
    (EngineError, 500),
)


def describe_error(error: Exception) -> RequestRefused:
    """Return an exception as it goes out; an unexpected one is logged and shows no details."""
    if isinstance(error, RequestRefused):
        return error
    if isinstance(error, ClientDisconnect):  # in its upload; the reply has no reader
        return RequestRefused("The client left.", code="client_closed_request", status=CLIENT_CLOSED_REQUEST)
    if isinstance(error, HTTPException):
        return RequestRefused(str(error.detail), code="http_error", status=error.status_code)
    if (refused := _not_now(error)) is not None:
        return refused
    if isinstance(error, ProlepsisError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), None)
        if status is not None:
            param = getattr(error, "param", None)
            kind = "answer_error" if isinstance(error, AnswerBroken) else None
            return RequestRefused(str(error), code=error.code, param=param, status=status, kind=kind)
    log.error("request_failed", error=type(error).__name__, frames=_frames(error))
    message = "The server failed to process the request; the error has been logged."
    return RequestRefused(message, code="internal_error", status=500)


def _not_now(error: Exception) -> RequestRefused | None:
    """Return the refusal where store or disk take nothing now; the cause, which names places of theirs, is logged."""
    if isinstance(error, StoreUnavailable):
        log.error("store_unavailable", error=str(error))
        message = "The store is busy or cannot be reached; send the request again."
        return RequestRefused(message, code=error.code, status=503)
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        log.error("disk_full", frames=_frames(error))
        return RequestRefused("No disk space is left for the request; try again later.", code="disk_full", status=503)
    return None


def _frames(error: BaseException) -> list[str]:
    """Where it happened, innermost last, without its message: that may quote a prompt."""
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def install_error_handlers(app: FastAPI, observe: Callable[[Exception], None]) -> None:
    """Answer every exception of every route in the route's shape; `observe` sees each."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        observe(error)
        return error_response(error, request.scope)

    for kind in (ProlepsisError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
