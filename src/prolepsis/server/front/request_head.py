"""Request heads that can be read in two ways, or that this server does not serve: no route sees them."""

import re
from collections import Counter
from collections.abc import Callable

import h11

from prolepsis.control.web.refusals import BODY_CODINGS, Refused, invalid_http, too_large

_ONCE = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"idempotency-key",
        b"x-api-key",
        b"x-request-timeout-ms",
        b"x-spec-learn",
        b"x-spec-mode",
        b"x-target-first-token-ms",
        b"x-target-ms-per-token",
    }
)
"""Headers of one value; h11 itself refuses several hosts, lengths and transfer encodings."""
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
"""What RFC 9110 does not allow in a value, and h11 lets pass in part."""
_VERSIONS = (b"1.0", b"1.1")


class StrictConnection(h11.Connection):
    """The server's side of a connection, with the refusal of a head or body that cannot be served."""

    def __init__(self, max_incomplete_event_size: int | None, has_to_wait: Callable[[], bool]) -> None:
        """`max_incomplete_event_size`: longest head, in bytes; None: 16 KiB. `has_to_wait`: for its slice of time."""
        self.is_behind = False
        """What has come was not all looked at, for lack of time."""
        self._has_to_wait = has_to_wait
        self._longest = max_incomplete_event_size or 2**14
        super().__init__(h11.SERVER, self._longest)
        self.refusal: Refused | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return h11's next event; raises `RemoteProtocolError`, whose cause is then the `refusal`."""
        self.is_behind = self._has_to_wait()
        if self.is_behind:
            return h11.NEED_DATA
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            # the refusal is without the bytes that h11 quotes
            malformed = invalid_http(str(error).partition(": bytearray")[0])
            is_long = error.error_status_hint == 431
            self.refusal = self.refusal or (too_large("headers", f"{self._longest} bytes") if is_long else malformed)
            raise
        if isinstance(event, h11.Request):
            self.refusal = unfit(event)
            if self.refusal is not None:
                raise h11.RemoteProtocolError(str(self.refusal))
        return event


def unfit(request: h11.Request) -> Refused | None:
    if request.http_version not in _VERSIONS:
        given = request.http_version.decode()
        return invalid_http(f"the version is HTTP/{given}; allowed: HTTP/1.0 and HTTP/1.1")
    counts = Counter(name for name, _ in request.headers)
    for name, value in request.headers:
        if match := _CONTROL.search(value):
            return invalid_http(f"header {name.decode()} holds the control character 0x{match[0][0]:02x}")
        if name in _ONCE and counts[name] > 1:
            return invalid_http(f"header {name.decode()} is given {counts[name]} times; allowed: once")
    return _unfit_body(request, dict(request.headers))


def _unfit_body(request: h11.Request, headers: dict[bytes, bytes]) -> Refused | None:
    if b"transfer-encoding" in headers:
        if b"content-length" in headers:
            return invalid_http("the body has both content-length and transfer-encoding; allowed: one of them")
        if request.http_version == b"1.0":
            return invalid_http("transfer-encoding is given with HTTP/1.0; allowed: with HTTP/1.1")
    coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if coding.lower() not in BODY_CODINGS:
        allowed = ", ".join(BODY_CODINGS)
        return invalid_http(f"content-encoding is {coding[:32]!r}; allowed: {allowed}, or none", status=415)
    return None
