"""Decodes a request of the audit log again, with an engine of this process."""

import asyncio
from typing import Any

from prolepsis.audit.entry import AuditEntry
from prolepsis.audit.requests import recorded_in
from prolepsis.audit.routes import replay_reply
from prolepsis.cli.config import Settings
from prolepsis.core.errors import ConfigError
from prolepsis.correctness.replay import Recording, replay
from prolepsis.engine.client import EngineClient


def replayed_here(entry: AuditEntry, settings: Settings, *, any_model: bool) -> dict[str, Any]:
    """Return what a replay shows, as a server's /admin/audit/ID/replay does.

    Raises `InvalidParameter` where the entry holds no tokens, `ConfigError` where they are of another model, unless
    that is asked for.
    """
    recorded = recorded_in(entry)
    return asyncio.run(_replayed(entry, recorded, settings, any_model=any_model))


async def _replayed(entry: AuditEntry, recorded: Recording, settings: Settings, *, any_model: bool) -> dict[str, Any]:
    from prolepsis.cli.engine import running

    async with running(settings) as engine:
        if not any_model:
            check_model(entry, engine.client)
        found = await replay(engine.client, recorded, "replay")
        info = engine.client.info
    return replay_reply(entry, found, info.exactness).model_dump()


def check_model(entry: AuditEntry, client: EngineClient) -> None:
    """Raise `ConfigError` where the entry was made with another model, tokenizer or forward than is loaded."""
    given, here = entry.versions.get("fingerprint"), client.info.fingerprint
    if given != here:
        model = entry.versions.get("model")
        message = (
            f"entry {entry.seq} is of {model} ({given}), loaded is {client.info.model} ({here}), whose tokens may "
            "differ for that alone; --model names another, --any-model compares all the same"
        )
        raise ConfigError(message, param="model")
