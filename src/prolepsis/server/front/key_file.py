"""API keys at rest: a JSON file of hashes that only its owner may read. Secrets are shown once and never stored."""

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prolepsis.control.web.caller import Caller, Role
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import JsonFile, config_directory
from prolepsis.core.validation import first_problem
from prolepsis.server.admission.load_shedding import DEFAULT_TIER, TierName

PREFIX = "plps"
"""Begins every key, so that scanners for leaked secrets know one when they see it."""
KEY = re.compile(rf"{PREFIX}_([0-9a-f]{{12}})_([A-Za-z0-9_-]{{43}})")
"""Public id and secret."""
_OWNER_ONLY = 0o600

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class KeyRecord(BaseModel):
    """Stored record of one key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    hash: Annotated[str, Field(pattern=r"^sha256\$[0-9a-f]{64}$")]
    tenant: Name
    tier: TierName = DEFAULT_TIER
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = ("client",)
    models: tuple[str, ...] = ()  # models the key may use; empty: all
    budget: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = ""
    """Budget, for the rules of policies; empty: none."""
    note: str = ""
    created: AwareDatetime
    expires: AwareDatetime | None = None

    @property
    def caller(self) -> Caller:
        return Caller(self.id, self.tenant, frozenset(self.roles), self.tier, frozenset(self.models), self.budget)

    def expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[KeyRecord, ...] = ()


class KeyFile:
    """Reads and writes the store; a write is whole or not at all, and two writers wait for each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = JsonFile(path, TypeAdapter(_Stored), absent=_Stored(), param="keys_file")

    def read(self) -> tuple[KeyRecord, ...]:
        """Return the keys, none without a file; raises `ConfigError` for one that cannot be used or is not private."""
        with suppress(OSError):
            stat = self.path.stat()
            allowed = 0o640 if stat.st_uid == 0 else _OWNER_ONLY  # as PostgreSQL: a group that root lets read, may read
            if stat.st_mode & 0o077 & ~allowed:
                given = f"key file {self.path} has mode {stat.st_mode & 0o777:o}, so that others may open it"
                raise ConfigError(f"{given}; allowed: {allowed:o} or less", param="keys_file")
        return self._file.read().keys

    def version(self) -> tuple[int, ...] | None:
        """Return what changes when the file does, empty where it cannot be looked at; None without a file."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return ()
        return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size

    def add(self, record: KeyRecord) -> None:
        """Append a key; raises `ConfigError` where the file cannot be used or written."""
        with self._file.locked():
            self._file.write(_Stored(keys=(*self.read(), record)))

    def remove(self, key_id: str) -> KeyRecord:
        """Delete a key and return what it was; raises `ConfigError` for an id that is not there."""
        with self._file.locked():
            keys = self.read()
            removed = next((key for key in keys if key.id == key_id), None)
            if removed is None:
                raise ConfigError(
                    f"key {key_id[:64]!r} is not in {self.path}; `prolepsis keys list` shows those that are"
                )
            self._file.write(_Stored(keys=tuple(key for key in keys if key.id != key_id)))
            return removed


def hash_of(key: str) -> str:
    """Return what is stored of a key; 256 random bits cannot be guessed, so one pass of SHA-256 is enough."""
    return f"sha256${sha256(key.encode()).hexdigest()}"


def new_key(
    tenant: str,
    *,
    tier: str = DEFAULT_TIER,
    roles: Sequence[str] = ("client",),
    models: Sequence[str] = (),
    budget: str = "",
    note: str = "",
    expires: datetime | None = None,
) -> tuple[KeyRecord, str]:
    """Return a record and the key itself, which is nowhere else; raises `ConfigError` for values not allowed."""
    key_id = secrets.token_hex(6)
    key = f"{PREFIX}_{key_id}_{secrets.token_urlsafe(32)}"
    values = {
        "id": key_id,
        "hash": hash_of(key),
        "tenant": tenant,
        "tier": tier,
        "roles": tuple(dict.fromkeys(roles)),
        "models": tuple(models),
        "budget": budget,
        "note": note,
        "created": datetime.now(UTC).replace(microsecond=0),
        "expires": expires,
    }
    try:
        record = KeyRecord.model_validate(values)
    except ValidationError as error:
        problem = first_problem(error, KeyRecord, values)
        raise ConfigError(str(problem), param=str(problem.path[0])) from None
    return record, key


def default_key_file() -> Path:
    """Return where keys are kept where nothing else is said (XDG)."""
    return config_directory() / "keys.json"
