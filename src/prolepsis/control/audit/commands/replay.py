"""Replays requests of the audit log, or of a bundle, with an engine in this process."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from prolepsis.control.audit.bundle import Bundle
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.audit.routes import recorded_in, replay_reply
from prolepsis.control.correctness.replay import replay
from prolepsis.core.engine_client import EngineClient, EngineInfo
from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.exact_group import FINGERPRINT
from prolepsis.core.recording import SampleDifference
from prolepsis.core.terminal.config import Settings

StartEngine = Callable[[Settings], AbstractAsyncContextManager[EngineClient]]


def replayed_here(entry: AuditEntry, settings: Settings, start: StartEngine, *, any_model: bool) -> dict[str, Any]:
    """Return the result of a replay, in the form of a server's /admin/audit/ID/replay.

    Raises `InvalidParameter` if the entry holds no tokens, `ConfigError` if they are of another model and `any_model`
    is false.
    """
    recorded = recorded_in(entry)

    async def replayed() -> dict[str, Any]:
        async with start(settings) as client:
            if not any_model:
                check_model(entry, client)
            return replay_reply(entry, await replay(client, recorded, "replay"), client.info.exactness).model_dump()

    return asyncio.run(replayed())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledReplay:
    seq: int
    request_id: str
    outcome: Literal["equal", "different", "cannot"]
    reason: str
    num_tokens: int = 0
    differences: Sequence[SampleDifference] = ()


def bundle_replayed(bundle: Bundle, settings: Settings, start: StartEngine, *, any_model: bool) -> dict[str, Any]:
    """Return for each prompt of a bundle whether this machine's tokens equal the recorded ones, or cannot be compared.

    The machine has to be of the recorded exact group, unless `any_model`. No engine starts if no prompt has tokens.
    """
    replays: list[BundledReplay] = []
    with_tokens: list[AuditEntry] = []
    for entry in bundle.entries:
        try:
            recorded_in(entry)
            with_tokens.append(entry)
        except InvalidParameter as error:
            request_id = entry.details.subject if entry.details is not None else ""
            replays.append(_not_compared(entry, request_id, str(error)))

    async def replayed() -> list[BundledReplay]:
        async with start(settings) as client:
            return [await _replayed(entry, client, any_model=any_model) for entry in with_tokens]

    replays += asyncio.run(replayed()) if with_tokens else []
    outcomes = {replay.outcome for replay in replays}
    outcome = "different" if "different" in outcomes else "equal" if outcomes == {"equal"} else "cannot"
    made = {"made_at": bundle.made_at, "made_with": bundle.made_with, "form": bundle.form}
    in_order = sorted(replays, key=lambda replay: replay.seq)
    return {"outcome": outcome, **made, "prompts": [asdict(replay) for replay in in_order]}


def _not_compared(entry: AuditEntry, request_id: str, reason: str) -> BundledReplay:
    return BundledReplay(seq=entry.seq, request_id=request_id, outcome="cannot", reason=reason)


async def _replayed(entry: AuditEntry, client: EngineClient, *, any_model: bool) -> BundledReplay:
    recorded, others = recorded_in(entry), other_group(entry, client.info)
    request_id = recorded.request.request_id
    if others and not any_model:
        return _not_compared(entry, request_id, f"this machine is of another exact group: {'; '.join(others)}")
    result = await replay(client, recorded, f"replay-{entry.seq}")
    after = entry.details.after if entry.details is not None else None
    was_cut = isinstance(after, dict) and after.get("end") != "finished"  # a replay continues where its answer ended
    ends = {i: len(tokens) for i, tokens in enumerate(recorded.tokens)} if was_cut else {}
    differences = [difference for difference in result.shown if ends.get(difference.sample) != difference.position]
    kinds = sorted({difference.kind for difference in differences})
    reason = f"first differences: {', '.join(kinds)}" if kinds else "all recorded tokens are the same"
    if others:
        reason += f", though this machine is of another exact group: {'; '.join(others)}"
    return BundledReplay(
        seq=entry.seq,
        request_id=request_id,
        outcome="different" if differences else "equal",
        reason=reason,
        num_tokens=result.num_tokens,
        differences=differences,
    )


def other_group(entry: AuditEntry, here: EngineInfo) -> list[str]:
    """Return in what this machine differs from the exact group that made an entry's tokens."""
    differences = here.exact_group.differences(entry.versions)
    given = entry.versions.get(FINGERPRINT)
    if not differences and given != here.fingerprint:  # an entry from before the parts were recorded
        differences = [f"{FINGERPRINT} {given} recorded, {here.fingerprint} here"]
    return differences
