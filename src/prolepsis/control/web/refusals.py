"""Refusals of requests by sign-in and admission, in OpenAI's shape, with the time after which to try again."""

import math
import re
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

_STATUS = {"headers_too_large": 431, "body_too_large": 413}


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
    code = f"request_{'headers_' if what == 'headers' else ''}too_large"
    message = f"The request's {what} {'are' if what == 'headers' else 'is'} larger than {limit}, the largest allowed."
    reason: Reason = "headers_too_large" if what == "headers" else "body_too_large"
    return Refused(reason, message, code=code, status=_STATUS[reason])


def headers_too_slow(timeout_s: float) -> Refused:
    message = f"The request's headers did not arrive within {timeout_s:g} s."
    return Refused("headers_too_slow", message, code="request_timeout", status=408)


def too_many_connections(limit: int) -> Refused:
    message = f"{limit} connections are open already, which is the limit."
    return Refused("too_many_connections", message, code="too_many_connections", status=503, retry_after_s=1)


def no_descriptor_left() -> Refused:
    message = "The server has no descriptor left for another connection."
    return Refused("too_many_connections", message, code="too_many_connections", status=503, retry_after_s=1)


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


def upload_too_slow(timeout_s: float) -> Refused:
    message = f"The request's body did not arrive within {timeout_s:g} s."
    return Refused("upload_too_slow", message, code="request_timeout", status=408)


def too_many_uploads(limit: int) -> Refused:
    message = f"Bodies of this tenant that wait to be read take {limit} bytes already, which is the limit."
    return Refused("too_many_uploads", message, code="too_many_uploads", status=429, retry_after_s=1)


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


def queue_full(limit: int, retry_after_s: float) -> Refused:
    message = f"{limit} requests of this tenant wait already, which is the limit."
    return Refused("queue_full", message, code="queue_full", status=429, retry_after_s=retry_after_s)


def server_full(limit: int, retry_after_s: float) -> Refused:
    message = f"{limit} requests wait already, which is the limit."
    return Refused("server_full", message, code="server_full", status=503, retry_after_s=retry_after_s)


def too_many_kept(limit: int, retry_after_s: float) -> Refused:
    message = (
        f"The answers kept for requests with an Idempotency-Key take {limit} bytes, which is the limit, and this "
        "tenant has its share; a request without the key is served."
    )
    return Refused("answers_kept", message, code="too_many_idempotent", status=429, retry_after_s=retry_after_s)


def shed(tier: str, retry_after_s: float) -> Refused:
    message = f"Requests have waited too long; new ones of the tier {tier} are refused for now."
    return Refused("shed", message, code="overloaded", status=503, retry_after_s=retry_after_s)


def draining(why: str = "is shutting down") -> Refused:
    message = f"The server {why} and takes no new requests."
    return Refused("draining", message, code="server_draining", status=503, retry_after_s=5)


def _listed(roles: frozenset[Role]) -> str:
    return " or ".join(sorted(roles))
