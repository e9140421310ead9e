"""Changes of the key file in the audit log, by any author: ids and roles, no secrets and no tenants."""

from collections.abc import Iterable, Mapping

from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit
from prolepsis.core.errors import ConfigError
from prolepsis.server.front.key_file import KeyFile, KeyRecord
from prolepsis.server.front.keys import Keys

Records = Mapping[str, KeyRecord]
"""By id."""


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
        "changed_fields": {key_id: _different(before[key_id], now[key_id]) for key_id in changed},
    }


def _different(before: KeyRecord, now: KeyRecord) -> list[str]:
    return [name for name in KeyRecord.model_fields if getattr(before, name) != getattr(now, name)]


def feature(context: Context, keys: Keys) -> Feature:
    """Return what records the keys, if there are any."""
    return Feature() if keys.file is None else KeyChanges(keys.file, context.emit)
