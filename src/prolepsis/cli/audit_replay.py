"""Replays a request of the audit log with an engine in this process."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from prolepsis.audit.entry import AuditEntry
from prolepsis.audit.routes import recorded_in, replay_reply
from prolepsis.cli.config import Settings
from prolepsis.cli.engine import Running
from prolepsis.core.errors import ConfigError
from prolepsis.core.recording import Recording
from prolepsis.correctness.replay import replay
from prolepsis.engine.client import EngineClient

StartEngine = Callable[[Settings], AbstractAsyncContextManager[Running]]


def replayed_here(entry: AuditEntry, settings: Settings, start: StartEngine, *, any_model: bool) -> dict[str, Any]:
    """Return the result of a replay, in the form of a server's /admin/audit/ID/replay.

    Raises `InvalidParameter` if the entry holds no tokens, `ConfigError` if they are of another model and `any_model`
    is false.
    """
    return asyncio.run(_replayed(entry, recorded_in(entry), start(settings), any_model=any_model))


async def _replayed(
    entry: AuditEntry, recorded: Recording, started: AbstractAsyncContextManager[Running], *, any_model: bool
) -> dict[str, Any]:
    async with started as engine:
        if not any_model:
            check_model(entry, engine.client)
        found = await replay(engine.client, recorded, "replay")
        info = engine.client.info
    return replay_reply(entry, found, info.exactness).model_dump()


def check_model(entry: AuditEntry, client: EngineClient) -> None:
    """Raise `ConfigError` if the entry was made with another model, tokenizer or forward than the loaded one."""
    given, here = entry.versions.get("fingerprint"), client.info.fingerprint
    if given != here:
        model = entry.versions.get("model")
        message = (
            f"entry {entry.seq} is of {model} ({given}), loaded is {client.info.model} ({here}); its tokens may differ "
            "for that reason alone: choose a model with --model, or compare anyway with --any-model"
        )
        raise ConfigError(message, param="model")
