"""Changes of the key file in the audit log, whoever made them: ids and roles, no secrets and no tenants."""

from collections.abc import Iterable, Mapping, Sequence

from prolepsis.api.auth.key_file import KeyFile, KeyRecord
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit
from prolepsis.core.errors import ConfigError
from prolepsis.web.feature import Feature

Shown = Mapping[str, Mapping[str, object]]
"""By id: what a key may do."""


class KeyChanges(Feature):
    """Records the keys at the start, and every change of them."""

    name = "keys"
    period_s = 1.0

    def __init__(self, file: KeyFile, emit: Emit) -> None:
        """Raises `ConfigError` where the file is there but cannot be used."""
        self._file = file
        self._emit = emit
        self._version = file.version()
        self._keys = _shown(file.read())
        if self._version is not None:
            self._record("keys.loaded", {"keys": self._keys})

    async def tick(self) -> None:
        """Read the file again if it changed."""
        version = self._file.version()
        if version == self._version:
            return
        self._version = version
        try:
            before, self._keys = self._keys, _shown(self._file.read())
        except ConfigError:  # logged where callers are checked; the keys in use stay
            return
        if self._keys != before:
            self._record("keys.reloaded", _changes(before, self._keys))

    def _record(self, action: str, after: Mapping[str, object]) -> None:
        self._emit(AuditEvent(actor=SERVER, action=action, subject=str(self._file.path), after=after))


def _shown(keys: Iterable[KeyRecord]) -> Shown:
    fields = {"tier", "roles", "models", "created", "expires"}
    return {key.id: key.model_dump(mode="json", include=fields) for key in keys}


def _changes(before: Shown, now: Shown) -> dict[str, object]:
    def of(ids: Sequence[str], keys: Shown) -> dict[str, object]:
        return {key_id: keys[key_id] for key_id in ids}

    kept = before.keys() & now.keys()
    return {
        "created": of(sorted(now.keys() - before.keys()), now),
        "revoked": of(sorted(before.keys() - now.keys()), before),
        "changed": of([key_id for key_id in sorted(kept) if before[key_id] != now[key_id]], now),
    }
