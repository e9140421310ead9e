"""Checks presented keys against the key file, which may change while the server runs."""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b

import structlog

from prolepsis.control.web.caller import DEVELOPER, Caller
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.refusals import not_authenticated, wrong_role
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit
from prolepsis.core.errors import ConfigError
from prolepsis.server.front.key_file import KEY, KeyFile, KeyRecord, hash_of

LOOK_EVERY_S = 1.0
"""How often the file is looked at for changes, at most."""

log = structlog.get_logger(__name__)


class Keys:
    """The owner of a presented key.

    Without a key file (`file` None or missing) every caller is the developer, until one appears; where it is there, or
    was, only keys count, also where the last one is revoked. A key is found by a digest of its hash that is keyed by
    this process: one lookup, which takes the same time for each id, known or not, and waits for nothing.
    """

    def __init__(
        self,
        file: KeyFile | None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Raises `ConfigError` where the file is there but cannot be used."""
        self.file = file
        self._clock = clock
        self._today = today
        self._process_key = secrets.token_bytes(32)
        self._version = self._failed = file.version() if file else None
        self._take(file.read() if file else ())
        self._required = self._version is not None or bool(self._records)
        self._looked = clock()

    @property
    def required(self) -> bool:
        """Whether a key is asked for; False: development mode."""
        return self._required

    @property
    def tenants(self) -> frozenset[str]:
        return frozenset(record.tenant for record in self._records)

    @property
    def tiers(self) -> frozenset[str]:
        return frozenset(record.tier for record in self._records) if self._required else frozenset({DEVELOPER.tier})

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller of an `Authorization` header; raises `RequestRefused` (401)."""
        self._look()
        if not self._required:
            return DEVELOPER
        if not authorization:
            raise not_authenticated("This server needs an API key: Authorization: Bearer KEY.", "missing_api_key")
        scheme, _, given = authorization.partition(" ")
        match = KEY.fullmatch(given.strip()) if scheme.lower() == "bearer" else None
        return self._owner(self._by_digest.get(self._digest(hash_of(match[0]))) if match else None)

    def sign_in(self, key: str) -> bytes:
        """Return what stands for a key in this process, for `holder`; raises `RequestRefused` (401)."""
        self.caller(f"Bearer {key}")
        return self._digest(hash_of(key))

    def holder(self, signed_in: bytes) -> Caller:
        """Return the caller whose key `sign_in` took; raises `RequestRefused` (401) once it is revoked or expired."""
        self._look()
        return self._owner(self._by_digest.get(signed_in)) if self._required else DEVELOPER

    def client_of(self, key_id: str, tenant: str) -> Caller:
        """Return the caller of a key, for a tenant's work that goes on without it.

        Raises `RequestRefused` where the key may not begin it now: 401 as `holder` does, 403 without the role.
        """
        self._look()
        found = next((record for record in self._records if record.id == key_id), None)
        caller = self._owner(found) if self._required else DEVELOPER
        if caller.tenant != tenant:
            raise not_authenticated("The API key that began this work is another tenant's now.", "invalid_api_key")
        if not caller.has("client"):
            raise wrong_role(caller.roles, frozenset({"client"}))
        return caller

    def name_of(self, key_id: str) -> str:
        """Return the note of a key, else its tenant; empty for what is no key here, or no longer one."""
        return next((record.note or record.tenant for record in self._records if record.id == key_id), "")

    def _owner(self, record: KeyRecord | None) -> Caller:
        if record is None:
            raise not_authenticated("The API key is not valid here.", "invalid_api_key")
        if record.expired(self._today()):
            raise not_authenticated(f"The API key {record.id} has expired.", "expired_api_key")
        return record.caller

    def _take(self, records: Sequence[KeyRecord]) -> None:
        self._records = records
        self._by_digest = {self._digest(record.hash): record for record in records}

    def _digest(self, hashed: str) -> bytes:
        return blake2b(hashed.encode(), key=self._process_key).digest()

    def _look(self) -> None:
        """Take in a changed file; one that cannot be used leaves the keys as they were."""
        now = self._clock()
        if self.file is None or now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        version = self.file.version()
        if version == self._version:
            return
        try:
            records = self.file.read()
        except ConfigError as error:
            self._demand()
            if version != self._failed:
                log.error("keys_not_reloaded", error=str(error))
            self._failed = version
            return
        self._version = self._failed = version
        self._take(records)
        if version is not None or records:
            self._demand()
        log.info("keys_reloaded", keys=len(records))

    def _demand(self) -> None:
        """Ask for keys from now on."""
        if not self._required:
            log.warning("keys_required", detail="there is a key file now: development mode has ended")
        self._required = True


Records = Mapping[str, KeyRecord]


class KeyChanges(Feature):
    """Records the keys at the start, and every change of them."""

    name = "keys"
    period_s = 1.0

    def __init__(self, file: KeyFile, emit: Emit) -> None:
        """Raises `ConfigError` where the file is there but cannot be used."""
        self._file = file
        self._emit = emit
        self._version = file.version()
        self._keys = _by_id(file.read())
        if self._version is not None:
            self._record("keys.loaded", {"keys": _shown(self._keys.values())})

    async def tick(self) -> None:
        """Read the file again if it changed."""
        version = self._file.version()
        if version == self._version:
            return
        self._version = version
        try:
            before, self._keys = self._keys, _by_id(self._file.read())
        except ConfigError:  # logged where callers are checked; the keys in use stay
            return
        if self._keys != before:
            self._record("keys.reloaded", _changes(before, self._keys))

    def _record(self, action: str, after: Mapping[str, object]) -> None:
        self._emit(AuditEvent(actor=SERVER, action=action, subject=str(self._file.path), after=after))


def _by_id(keys: Iterable[KeyRecord]) -> Records:
    return {key.id: key for key in keys}


def _shown(keys: Iterable[KeyRecord]) -> dict[str, Mapping[str, object]]:
    fields = {"tier", "roles", "models", "budget", "created", "expires"}
    return {key.id: key.model_dump(mode="json", include=fields) for key in keys}


def _changes(before: Records, now: Records) -> dict[str, object]:
    """Say what is different; a new secret or tenant shows as a field that changed, without its value."""
    changed = [key_id for key_id in sorted(before.keys() & now.keys()) if before[key_id] != now[key_id]]
    return {
        "created": _shown(now[key_id] for key_id in sorted(now.keys() - before.keys())),
        "revoked": _shown(before[key_id] for key_id in sorted(before.keys() - now.keys())),
        "changed": _shown(now[key_id] for key_id in changed),
        "changed_fields": {
            key_id: [name for name, value in before[key_id] if value != getattr(now[key_id], name)]
            for key_id in changed
        },
    }


def key_changes(context: Context, keys: Keys) -> Feature:
    """Return what records the keys, if there are any."""
    return Feature() if keys.file is None else KeyChanges(keys.file, context.emit)
