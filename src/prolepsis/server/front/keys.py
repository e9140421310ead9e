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
Records = Mapping[str, KeyRecord]
"""By id."""


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
        self.on_change: Callable[[Records], None] = lambda before: None
        """Is called with the records before, once the file has others."""
        self._clock = clock
        self._today = today
        self._process_key = secrets.token_bytes(32)
        self._version = self._failed = file.version() if file else None
        self._take(file.read() if file else ())
        self._required = self._version is not None or bool(self.by_id)
        self._looked = clock()

    @property
    def required(self) -> bool:
        """Whether a key is asked for; False: development mode."""
        return self._required

    @property
    def tenants(self) -> frozenset[str]:
        return frozenset(record.tenant for record in self.by_id.values())

    @property
    def tiers(self) -> frozenset[str]:
        tiers = (record.tier for record in self.by_id.values()) if self._required else (DEVELOPER.tier,)
        return frozenset(tiers)

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller of an `Authorization` header; raises `RequestRefused` (401)."""
        self._look_at_times()
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
        self._look_at_times()
        return self._owner(self._by_digest.get(signed_in)) if self._required else DEVELOPER

    def client_of(self, key_id: str, tenant: str) -> Caller:
        """Return the caller of a key, for a tenant's work that goes on without it.

        Raises `RequestRefused` where the key may not begin it now: 401 as `holder` does, 403 without the role.
        """
        self._look_at_times()
        caller = self._owner(self.by_id.get(key_id)) if self._required else DEVELOPER
        if caller.tenant != tenant:
            raise not_authenticated("The API key that began this work is another tenant's now.", "invalid_api_key")
        if not caller.has("client"):
            raise wrong_role(caller.roles, frozenset({"client"}))
        return caller

    def name_of(self, key_id: str) -> str:
        """Return the note of a key, else its tenant; empty for what is no key here, or no longer one."""
        record = self.by_id.get(key_id)
        return (record.note or record.tenant) if record else ""

    def _owner(self, record: KeyRecord | None) -> Caller:
        if record is None:
            raise not_authenticated("The API key is not valid here.", "invalid_api_key")
        if record.expired(self._today()):
            raise not_authenticated(f"The API key {record.id} has expired.", "expired_api_key")
        return record.caller

    def _take(self, records: Sequence[KeyRecord]) -> None:
        self.by_id: Records = {record.id: record for record in records}
        self._by_digest = {self._digest(record.hash): record for record in records}

    def _digest(self, hashed: str) -> bytes:
        return blake2b(hashed.encode(), key=self._process_key).digest()

    def _look_at_times(self) -> None:
        if self.file is not None and self._clock() - self._looked >= LOOK_EVERY_S:
            self.look(self.file)

    def look(self, file: KeyFile) -> None:
        """Take in a changed file; one that cannot be used leaves the keys as they were."""
        self._looked, version = self._clock(), file.version()
        if version == self._version:
            return
        try:
            records = file.read()
        except ConfigError as error:
            self._demand()
            if version != self._failed:
                log.error("keys_not_reloaded", error=str(error))
            self._failed = version
            return
        self._version = self._failed = version
        before = self.by_id
        self._take(records)
        if version is not None or records:
            self._demand()
        log.info("keys_reloaded", keys=len(records))
        if self.by_id != before:
            self.on_change(before)

    def _demand(self) -> None:
        """Ask for keys from now on."""
        if not self._required:
            log.warning("keys_required", detail="there is a key file now: development mode has ended")
        self._required = True


class KeyChanges(Feature):
    """Records the keys at the start, and every change of them."""

    name = "keys"
    period_s = LOOK_EVERY_S

    def __init__(self, keys: Keys, file: KeyFile, emit: Emit) -> None:
        self._keys, self._file, self._emit = keys, file, emit
        keys.on_change = self._changed
        if keys.by_id or file.version() is not None:
            self._record("keys.loaded", {"keys": _shown(keys.by_id.values())})

    async def tick(self) -> None:
        self._keys.look(self._file)

    def _changed(self, before: Records) -> None:
        """Record what is different; a new secret or tenant shows as a field that changed, without its value."""
        now = self._keys.by_id
        changed = [key_id for key_id in sorted(before.keys() & now.keys()) if before[key_id] != now[key_id]]
        after = {
            "created": _shown(now[key_id] for key_id in sorted(now.keys() - before.keys())),
            "revoked": _shown(before[key_id] for key_id in sorted(before.keys() - now.keys())),
            "changed": _shown(now[key_id] for key_id in changed),
            "changed_fields": {
                key_id: [name for name, value in before[key_id] if value != getattr(now[key_id], name)]
                for key_id in changed
            },
        }
        self._record("keys.reloaded", after)

    def _record(self, action: str, after: Mapping[str, object]) -> None:
        self._emit(AuditEvent(actor=SERVER, action=action, subject=str(self._file.path), after=after))


def _shown(keys: Iterable[KeyRecord]) -> dict[str, Mapping[str, object]]:
    fields = {"tier", "roles", "models", "budget", "created", "expires"}
    return {key.id: key.model_dump(mode="json", include=fields) for key in keys}


def key_changes(context: Context, keys: Keys) -> Feature:
    """Return what records the keys, if there are any."""
    return Feature() if keys.file is None else KeyChanges(keys, keys.file, context.emit)
