"""Checks presented keys against the key file, which may change while the server runs."""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b

import structlog
from anyio import to_thread
from argon2.exceptions import Argon2Error, InvalidHashError

from prolepsis.api.auth.key_file import HASHER, KEY, KeyFile, KeyRecord
from prolepsis.core.errors import ConfigError
from prolepsis.web.caller import DEVELOPER, Caller
from prolepsis.web.refusals import not_authenticated, too_many_checks

LOOK_EVERY_S = 1.0
"""How often the file is looked at for changes, at most."""
MAX_CHECKS_WAITING = 64
"""First uses of keys that may wait for argon2, which runs once at a time; more are told to come back."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Proven:
    """A secret that matched a stored hash, as a keyed digest of it."""

    hash: str
    digest: bytes


class Keys:
    """Who a presented key belongs to.

    Without a key file (`file` None or missing) every caller is the developer, until one appears; where it is there, or
    was, only keys count, also where the last one is revoked. argon2 runs once per key and process, off the event loop;
    after that a digest keyed by this process is compared, in constant time.
    """

    def __init__(
        self,
        file: KeyFile | None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Raises `ConfigError` where the file is there but cannot be used."""
        self._file = file
        self._clock = clock
        self._today = today
        self._version = self._failed = file.version() if file else None
        self._records = _by_id(file.read() if file else ())
        self._required = self._version is not None or bool(self._records)
        self._looked = clock()
        self._proven: dict[str, _Proven] = {}
        self._process_key = secrets.token_bytes(32)
        self._one_check = asyncio.Lock()
        self._num_waiting = 0
        self.num_hashed = 0
        """Runs of argon2."""

    @property
    def required(self) -> bool:
        """Whether a key is asked for; False: development mode."""
        return self._required

    async def caller(self, authorization: str | None) -> Caller:
        """Return the caller of an `Authorization` header; raises `RequestRefused` (401, or 429 under a flood)."""
        self._look()
        if not self._required:
            return DEVELOPER
        if not authorization:
            raise not_authenticated("This server needs an API key: Authorization: Bearer KEY.", "missing_api_key")
        scheme, _, given = authorization.partition(" ")
        match = KEY.fullmatch(given.strip()) if scheme.lower() == "bearer" else None
        record = self._records.get(match[1]) if match else None
        if match is None or record is None or not await self._matches(record, match[2]):
            raise not_authenticated("The API key is not valid here.", "invalid_api_key")
        if record.expired(self._today()):
            raise not_authenticated(f"The API key {record.id} has expired.", "expired_api_key")
        return record.caller

    async def _matches(self, record: KeyRecord, secret: str) -> bool:
        digest = blake2b(secret.encode(), key=self._process_key).digest()
        if self._is_proven(record, digest):
            return True
        if self._num_waiting >= MAX_CHECKS_WAITING:
            raise too_many_checks()
        self._num_waiting += 1
        try:
            async with self._one_check:
                if self._is_proven(record, digest):  # by a request that came a moment before
                    return True
                self.num_hashed += 1
                if not await to_thread.run_sync(_hash_matches, record.hash, secret):
                    return False
                self._proven[record.id] = _Proven(record.hash, digest)
                return True
        finally:
            self._num_waiting -= 1

    def _is_proven(self, record: KeyRecord, digest: bytes) -> bool:
        proven = self._proven.get(record.id)
        return proven is not None and proven.hash == record.hash and hmac.compare_digest(proven.digest, digest)

    def _look(self) -> None:
        """Take in a changed file; one that cannot be used leaves the keys as they were."""
        now = self._clock()
        if self._file is None or now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        version = self._file.version()
        if version == self._version:
            return
        try:
            records = self._file.read()
        except ConfigError as error:
            self._demand()
            if version != self._failed:
                log.error("keys_not_reloaded", error=str(error))
            self._failed = version
            return
        self._version = self._failed = version
        self._records = _by_id(records)
        self._proven = {key_id: proven for key_id, proven in self._proven.items() if key_id in self._records}
        if version is not None or records:
            self._demand()
        log.info("keys_reloaded", keys=len(self._records))

    def _demand(self) -> None:
        """Ask for keys from now on."""
        if not self._required:
            log.warning("keys_required", detail="there is a key file now: development mode has ended")
        self._required = True


def _by_id(records: tuple[KeyRecord, ...]) -> Mapping[str, KeyRecord]:
    return {record.id: record for record in records}


def _hash_matches(hashed: str, secret: str) -> bool:
    try:
        return HASHER.verify(hashed, secret)
    except (Argon2Error, InvalidHashError):
        return False
