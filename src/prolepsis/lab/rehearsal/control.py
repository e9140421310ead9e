"""The control of a rehearsal: what decides on a server's requests, on virtual time, and what it changed when."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prolepsis.control.controls.flags import flag_source
from prolepsis.control.policy.model import Policy
from prolepsis.control.policy.source import GivenPolicy
from prolepsis.control.store.store import unrecorded
from prolepsis.control.web.context import Context
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.plan import SpecPlan
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.sources import Sources
from prolepsis.server.speculation_control import SpeculationControl, speculation_control

BEGINNING = 1_704_067_200.0
"""Unix time at which a trace begins: a Monday at midnight, UTC."""
_SHOWN = ("rollout", "breaker", "drift", "eligibility", "kill")
"""Areas of the audit log whose events change how requests speculate, or say that drafts did."""


@dataclass(frozen=True, slots=True)
class ControlChange:
    """What the control did at one moment."""

    at: float  # seconds since the trace began
    what: str  # as the audit log names it: rollout.promoted, breaker.open, drift.cliff
    subject: str  # the rollout, or proposer and traffic class
    why: str
    detail: Mapping[str, Any]  # the numbers that decided it, as the audit log has them


@contextmanager
def rehearsed_control(
    config: ServerConfig, policy: Policy | None, client: EngineClient, plan: SpecPlan, changes: list[ControlChange]
) -> Iterator[SpeculationControl | None]:
    """Hold what decides by a policy, and by the flags that `config` names, with a store in memory; None without policy.

    `plan` is the engine's. All clocks are the running loop's, and what the control does goes to `changes`.
    """
    if policy is None:
        yield None
        return
    now = asyncio.get_running_loop().time
    with TemporaryDirectory() as folder, closing(unrecorded()) as store:
        context = Context(
            config=config.model_copy(update={"controls_file": Path(folder) / "controls.json"}),
            client=client,
            metrics=Metrics(),
            store=store,
            emit=lambda event: changes.extend(_changes(event, now())),
            base_plan=plan,
            clock=lambda: BEGINNING + now(),
            monotonic=now,
            wall=lambda: BEGINNING + now(),
        )
        source = GivenPolicy(with_approval(policy))
        yield speculation_control(context, Sources(policy=source, flags=flag_source(config)))


def with_approval(policy: Policy) -> Policy:
    """Return a policy whose rollouts start and go on by themselves, as if an operator approved each stage at once."""

    def approved(terms: Any) -> Any:
        if terms.rollout is None:
            return terms
        return _with(terms, rollout=terms.rollout.model_copy(update={"gate": "automatic"}))

    return _with_terms(policy, approved)


def without_rollouts(policy: Policy) -> Policy:
    """Return a policy whose rollouts are over: its rules are fully on."""
    return _with_terms(policy, lambda terms: _with(terms, rollout=None, guardrails=()))


def _with_terms(policy: Policy, change: Callable[[Any], Any]) -> Policy:
    return Policy(
        version=policy.version,
        never_learn=policy.never_learn,
        never_record=policy.never_record,
        traffic_classes=policy.traffic_classes,
        default=change(policy.default),
        rules=tuple(change(rule) for rule in policy.rules),
    )


def _with(terms: Any, **changes: object) -> Any:
    given = {name: getattr(terms, name) for name in terms.model_fields_set}
    return type(terms)(**{**given, **changes})


def _changes(event: AuditEvent, now: float) -> Iterator[ControlChange]:
    """Yield an event of the audit log that is a change of control."""
    after = event.after
    if event.action.partition(".")[0] in _SHOWN and isinstance(after, Mapping):
        why = ": ".join(str(after[name]) for name in ("stage", "condition", "reason") if after.get(name))
        if event.action.startswith("drift."):
            why = f"{after['before']:.2f} before, {after['after']:.2f} now"
        yield ControlChange(now, event.action, event.subject, why, after)
