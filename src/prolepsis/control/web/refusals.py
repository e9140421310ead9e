"""Refusals of requests by sign-in and admission, in OpenAI's shape, with the time after which to try again."""

import math
import re
from collections.abc import Callable
from typing import Literal

from prolepsis.control.web.caller import Role
from prolepsis.control.web.errors import RequestRefused

BODY_CODINGS = ("identity", "gzip")  # codings of a request's body that are read

Reason = Literal[
    "not_authenticated",
    "not_local",
    "wrong_role",
    "model_not_allowed",
    "invalid_http",
    "headers_too_large",
    "body_too_large",
    "headers_too_slow",
    "upload_too_slow",
    "too_many_uploads",
    "too_many_connections",
    "rate_limited",
    "queue_full",
    "server_full",
    "answers_kept",
    "shed",
    "draining",
    "deadline",
]
"""Label of the counter of refusals."""


class Refused(RequestRefused):
    """A request that sign-in or admission refuses; `reason` is its label in counters."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        code: str,
        status: int,
        kind: str | None = None,
        headers: dict[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        headers = dict(headers or {})
        if retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))
            headers["retry-after-ms"] = str(max(1, math.ceil(retry_after_s * 1000)))
        super().__init__(message, code=code, status=status, kind=kind, headers=headers)
        self.reason: Reason = reason
        self.counted = False


def not_authenticated(message: str, code: str) -> Refused:
    challenge = {"www-authenticate": 'Bearer realm="prolepsis"'}
    return Refused("not_authenticated", message, code=code, status=401, headers=challenge)


def not_local(header: Literal["Host", "Origin"], given: str) -> Refused:
    message = (
        f"Without API keys this server answers programs on its own machine only, and {header} is {given[:128]!r}; "
        "allowed: localhost or a loopback address. `prolepsis keys create` makes a key."
    )
    return Refused("not_local", message, code="not_local", status=403)


def wrong_role(has: frozenset[Role], needs: frozenset[Role]) -> Refused:
    message = f"This needs the role {_listed(needs)}; the key has {_listed(has)}."
    return Refused("wrong_role", message, code="insufficient_permissions", status=403)


def model_not_allowed(name: str, models: frozenset[str]) -> Refused:
    message = f"The key may not use the model {name[:128]!r}; allowed: {', '.join(sorted(models))}."
    return Refused("model_not_allowed", message, code="model_not_allowed", status=403)


def too_large(what: Literal["headers", "body"], limit: str) -> Refused:
    message = f"The request's {what} {'are' if what == 'headers' else 'is'} larger than {limit}, the largest allowed."
    if what == "headers":
        return Refused("headers_too_large", message, code="request_headers_too_large", status=431)
    return Refused("body_too_large", message, code="request_too_large", status=413)


_OTHERS = (
    (r"(/v\d|/api)?/(embed|rerank|moderations|images|audio)", "this server generates text"),
    (r"/api/(create|copy|push|delete|blobs)", "models are chosen when the server starts"),
)
"""Beginnings of paths that other servers have, and why they are not here."""


def unknown_url(method: str, path: str) -> RequestRefused:
    """Return the refusal of a path that is not served: a 404, since clients would try a 501 again."""
    why = next((f"; {why}" for begin, why in _OTHERS if re.match(begin, path)), "")
    return RequestRefused(f"No route {method} {path[:200]}{why}", code="unknown_url", status=404)


def invalid_http(what: str, *, status: int = 400) -> Refused:
    headers = {"accept-encoding": ", ".join(BODY_CODINGS)} if status == 415 else None
    message = f"This request cannot be served: {what}."
    return Refused("invalid_http", message, code="invalid_http", status=status, headers=headers)


def rate_limited(message: str, kind: str, retry_after_s: float, headers: dict[str, str]) -> Refused:
    return Refused(
        "rate_limited",
        message,
        code="rate_limit_exceeded",
        status=429,
        kind=kind,
        headers=headers,
        retry_after_s=retry_after_s,
    )


def _row(
    reason: Reason, status: int, message: str, *, code: str, retry_after_s: float | None = None
) -> Callable[..., Refused]:
    """Return what makes a refusal: of a value for its message, and of when to try again where the row does not say."""

    def refused(value: object = "", after_s: float | None = retry_after_s) -> Refused:
        return Refused(reason, message.format(value), code=code, status=status, retry_after_s=after_s)

    return refused


_HEADERS, _BODY = (f"The request's {part} did not arrive within {{:g}} s." for part in ("headers", "body"))
headers_too_slow = _row("headers_too_slow", 408, _HEADERS, code="request_timeout")
upload_too_slow = _row("upload_too_slow", 408, _BODY, code="request_timeout")
_OPEN = "{} connections are open already, which is the limit."
too_many_connections = _row("too_many_connections", 503, _OPEN, code="too_many_connections", retry_after_s=1)
_NO_DESCRIPTOR = "The server has no descriptor left for another connection."
no_descriptor_left = _row("too_many_connections", 503, _NO_DESCRIPTOR, code="too_many_connections", retry_after_s=1)
_UNREAD = "Bodies of this tenant that wait to be read take {} bytes already, which is the limit."
too_many_uploads = _row("too_many_uploads", 429, _UNREAD, code="too_many_uploads", retry_after_s=1)
_QUEUED = "{} requests of this tenant wait already, which is the limit."
queue_full = _row("queue_full", 429, _QUEUED, code="queue_full")
server_full = _row("server_full", 503, "{} requests wait already, which is the limit.", code="server_full")
_KEPT = (
    "The answers kept for requests with an Idempotency-Key take {} bytes, which is the limit, and this tenant has its "
    "share; a request without the key is served."
)
too_many_kept = _row("answers_kept", 429, _KEPT, code="too_many_idempotent")
_SHED = "Requests have waited too long; new ones of the tier {} are refused for now."
shed = _row("shed", 503, _SHED, code="overloaded")


def draining(why: str = "is shutting down") -> Refused:
    message = f"The server {why} and takes no new requests."
    return Refused("draining", message, code="server_draining", status=503, retry_after_s=5)


def _listed(roles: frozenset[Role]) -> str:
    return " or ".join(sorted(roles))
