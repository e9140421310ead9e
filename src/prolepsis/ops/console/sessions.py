"""Sessions of browsers: opaque, short, in memory, each bound to the API key that it was signed in with."""

import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.page import Session

IDLE_S = 1800.0  # a session that is not used for so long is over
LONGEST_S = 12 * 3600.0  # each one is over after so long
MAX_OF_KEY = 16  # sessions of one key; a further one ends the oldest


class KeyRing(Protocol):
    """The server's API keys."""

    @property
    def required(self) -> bool:
        """Whether a key is asked for; False: every caller on this machine is the developer."""

    def sign_in(self, key: str) -> bytes:
        """Return what stands for a key as long as it is valid; raises `RequestRefused` (401)."""

    def holder(self, signed_in: bytes) -> Caller:
        """Return the owner of a key that `sign_in` took; raises `RequestRefused` (401) once it is revoked or expired.

        Without keys it is the developer.
        """

    def name_of(self, key_id: str) -> str:
        """Return how people call a key, empty for what is no key here."""


class Sessions:
    """Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_digest: dict[bytes, Session] = {}
        """By digest of the cookie: memory holds nothing that opens a session."""

    def open(self, signed_in: bytes) -> tuple[str, Session]:
        """Return the cookie of a new session, and the session."""
        now = self._clock()
        self._by_digest = {key: session for key, session in self._by_digest.items() if not self._is_over(session, now)}
        of_key = [key for key, session in self._by_digest.items() if session.signed_in == signed_in]
        for key in of_key[: max(0, len(of_key) + 1 - MAX_OF_KEY)]:  # a further one ends the oldest
            del self._by_digest[key]
        cookie = secrets.token_urlsafe(32)
        session = self._by_digest[_digest(cookie)] = Session(signed_in, now, now)
        return cookie, session

    def find(self, cookie: str | None, *, used: bool) -> Session | None:
        """Return the session of a cookie, None if there is none or it is over; `used`: a person did something."""
        session = self._by_digest.get(_digest(cookie)) if cookie else None
        now = self._clock()
        if session is None or self._is_over(session, now):
            return None
        session.used_at = now if used else session.used_at
        return session

    def close(self, session: Session) -> None:
        self._by_digest = {key: known for key, known in self._by_digest.items() if known is not session}

    def _is_over(self, session: Session, now: float) -> bool:
        return now - session.used_at > IDLE_S or now - session.opened_at > LONGEST_S


def _digest(cookie: str) -> bytes:
    return sha256(cookie.encode()).digest()
