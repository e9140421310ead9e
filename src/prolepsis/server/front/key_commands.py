"""`prolepsis keys`: create, list and revoke the API keys of a key file."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import (
    AsJson,
    command_group,
    note,
    print_facts,
    print_json,
    stdout,
)

if TYPE_CHECKING:
    from prolepsis.server.front.key_file import KeyFile, KeyRecord

app = command_group("Create, list and revoke API keys.")

KeysFile = Annotated[
    Path | None, typer.Option("--keys-file", help="default: keys.json in the user's configuration directory")
]
TierOption = Literal["premium", "standard", "economy", "batch", "background"]
_COLUMNS = ("id", "tenant", "tier", "roles", "models", "expires > expired", "note")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@app.command()
def create(  # noqa: PLR0917  # typer names its options after parameters
    tenant: Annotated[str, typer.Option(help="tenants see nothing of one another")] = "default",
    tier: Annotated[
        TierOption, typer.Option(help="decides the share of the engine and who is shed first")
    ] = "standard",
    role: Annotated[
        list[str] | None,
        typer.Option(help="client, viewer, operator, auditor or admin; may be repeated; default: client"),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="model that the key may use; may be repeated; default: all")
    ] = None,
    budget: Annotated[str, typer.Option(help="budget that rules of a policy may name; default: none")] = "",
    expires_in: Annotated[str | None, typer.Option(help="lifetime such as 12h or 90d; default: unlimited")] = None,
    comment: Annotated[str, typer.Option("--note", help="shown by `keys list`")] = "",
    keys_file: KeysFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it once: only its hash is stored. Running servers accept it within a second."""
    from prolepsis.server.front.key_file import new_key

    file = _file(keys_file)
    expires = None if expires_in is None else _expiry(expires_in)
    record, key = new_key(
        tenant,
        tier=tier,
        roles=role or ("client",),
        models=model or (),
        budget=budget,
        note=comment,
        expires=expires,
    )
    file.add(record)
    _record("key.created", record, after=_shown(record))
    if as_json:
        print_json({"key": key, **_shown(record), "file": file.path})
        return
    stdout().print(key, soft_wrap=True)
    note(f"key {record.id} of tenant {record.tenant} is in {file.path}; this is the only time it is shown")


@app.command("list")
def list_keys(keys_file: KeysFile = None, as_json: AsJson = False) -> None:
    """List the keys, without their secrets."""
    file, now = _file(keys_file), datetime.now(UTC)
    keys = [{**_shown(key), "expired": key.expired(now)} for key in file.read()]
    print_reply({"file": file.path, "keys": keys}, {"keys": _COLUMNS}, as_json=as_json)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="as `keys list` shows it")], keys_file: KeysFile = None
) -> None:
    """Delete a key. Running servers refuse it within a second."""
    file = _file(keys_file)
    record = file.remove(key_id)
    _record("key.revoked", record, before=_shown(record))
    print_facts([("revoked", record.id), ("tenant", record.tenant), ("file", file.path)])


def _record(action: str, key: "KeyRecord", *, before: object = None, after: object = None) -> None:
    record_act(AuditEvent(actor=actor(), action=action, subject=key.id, before=before, after=after, tenant=key.tenant))


def _file(given: Path | None) -> "KeyFile":
    from prolepsis.server.front.key_file import KeyFile, default_key_file

    return KeyFile(settings_here(keys_file=given).server.keys_file or default_key_file())


def _expiry(text: str) -> datetime:
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text)
    if match is None:
        raise ConfigError(
            f"--expires-in is {text!r}; allowed: a number with m, h or d, such as 90d", param="expires_in"
        )
    return datetime.now(UTC).replace(microsecond=0) + int(match[1]) * _UNITS[match[2]]


def _shown(key: "KeyRecord") -> dict[str, object]:
    return key.model_dump(mode="json", exclude={"hash"})
