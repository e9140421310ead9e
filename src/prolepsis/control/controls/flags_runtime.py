"""Flags while serving: those of the provider and those that operators set; the kill flag is polled."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

import structlog
from anyio import to_thread
from openfeature.flag_evaluation import Reason
from openfeature.provider import FeatureProvider
from prometheus_client import CollectorRegistry
from pydantic import Field

from prolepsis.control.controls.flag_file import DEFAULTS, ENABLED, KILL, FlagFile
from prolepsis.control.controls.flags import ProviderFlags
from prolepsis.control.controls.kill_switch import Reason as ReasonText
from prolepsis.control.controls.kill_switch import shown_reason
from prolepsis.control.controls.operator_flags import OperatorFlags, SetFlag, plain_definition, stricter
from prolepsis.control.web.body_reader import read_body, read_query
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body, JsonObject
from prolepsis.control.web.routes import OPERATORS, WATCHERS, Route, Routes
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.core.telemetry.declare import counter

KILL_PERIOD_S = 1.0  # seconds between two evaluations of the kill flag; a changed file is evaluated at once

log = structlog.get_logger(__name__)


class FlagsFeature(Feature):
    """Evaluates the flags of the configured provider, and those that operators set. Belongs to one event loop."""

    name = "flags"
    period_s = 0.2
    ticks_before_serving = True

    def __init__(
        self,
        source: FlagFile | FeatureProvider | None,
        operators: OperatorFlags,
        registry: CollectorRegistry,
        *,
        on_kill: Callable[[FlagDecision], None],
        of_policy: Callable[[], Sequence[str]] = tuple,
        emit: Emit = discard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_kill` receives every evaluation of the kill flag; without a provider only once an operator set it.

        `of_policy` returns the flags that rules of the policy name.
        """
        self.operators = operators
        self.routes = flag_routes(operators, of_policy, emit)
        self._file = source if isinstance(source, FlagFile) else None
        self._provider = None if source is None or isinstance(source, FlagFile) else ProviderFlags(source)
        self._on_kill = on_kill
        self._emit = emit
        self._clock = clock
        self._kill_due = float("-inf")
        self._kill_set: FlagDecision | None = None
        self._kill_provided: FlagDecision | None = None  # the last good answer of file or provider
        text, labels = "Flags evaluated for requests", ("flag", "variant", "reason", "error")
        self._evaluations = counter(registry, "flag_evaluations", text, *labels)
        self._refused = counter(registry, "flag_file_refused", "Edits of the flag file that were refused")
        if self._file is not None:
            self._show(self._file, "loaded")

    async def enabled(self, facts: RequestFacts) -> FlagDecision | None:
        """Return whether the request may speculate, None if no flag says; a provider's failure raises nothing."""
        return self._counted(
            stricter(ENABLED, await self._provided(ENABLED, facts), self.operators.decide(ENABLED, facts))
        )

    async def named(self, keys: Sequence[str], facts: RequestFacts) -> tuple[FlagDecision, ...]:
        """Return the values of these flags for the request; a missing flag is false."""
        provided = await asyncio.gather(*(self._provided(key, facts) for key in keys))
        decisions = (
            stricter(key, flag, self.operators.decide(key, facts)) for key, flag in zip(keys, provided, strict=True)
        )
        return tuple(decision for each in decisions if (decision := self._counted(each)) is not None)

    async def tick(self) -> None:
        """Reload the file if it changed, and evaluate the kill flag if that is due."""
        decision = self.operators.decide(KILL)
        is_new, self._kill_set = decision != self._kill_set, decision
        if not (await self._reload() or is_new or self._clock() >= self._kill_due):
            return
        self._kill_due = self._clock() + KILL_PERIOD_S
        provided = await self._provided(KILL)
        if provided is not None and not provided.error:
            self._kill_provided = provided
        decision = stricter(KILL, self._kill_provided, self._kill_set)
        if decision is None and is_new:  # neither provider nor operator sets it any more
            decision = FlagDecision(KILL, DEFAULTS[KILL], None, Reason.DEFAULT)
        if decision is not None:
            self._on_kill(decision)

    async def close(self) -> None:
        if self._provider is not None:
            self._provider.close()

    async def _provided(self, key: str, facts: RequestFacts | None = None) -> FlagDecision | None:
        """Return what the file or the provider says, None without either."""
        if self._file is not None:
            return self._file.value.decide(key, facts)
        return await self._provider.decide(key, facts) if self._provider is not None else None

    async def _reload(self) -> bool:
        if self._file is None:
            return False
        before = self._file.value
        reload = await to_thread.run_sync(self._file.poll)
        if reload.refused is not None:
            self._refused.inc()
            log.error("flags_not_reloaded", error=str(reload.refused), in_use=before.version)
        elif reload.changed:
            self._show(self._file, "reloaded", before.content)
        return reload.changed

    def _counted(self, decision: FlagDecision | None) -> FlagDecision | None:
        if decision is None:
            return None
        self._evaluations.labels(decision.key, decision.variant or "", decision.reason, decision.error).inc()
        return decision

    def _show(self, file: FlagFile, what: Literal["loaded", "reloaded"], before: object = None) -> None:
        flags, path = file.value, str(file.path)
        log.info(f"flags_{what}", file=path, version=flags.version, flags=sorted(flags.keys))
        action, versions = f"flags.{what}", {"flags": flags.version}
        after = flags.content
        self._emit(AuditEvent(actor=SERVER, action=action, subject=path, before=before, after=after, versions=versions))


class FlagBody(Body):
    """A flag to set: for every request to the same value, or by a definition with targeting."""

    flag: Annotated[str, Field(max_length=64)]
    value: bool | None = None
    definition: JsonObject | None = None  # as a flag file has it: state, variants, defaultVariant, targeting
    reason: ReasonText = ""


class FlagRemovedQuery(Body):
    flag: Annotated[str, Field(max_length=64)]
    reason: ReasonText = ""


@dataclass(frozen=True, slots=True)
class FlagsReply:
    flags: list[SetFlag]
    not_saved: str | None = None  # reason why the setting is lost when the server ends
    warnings: list[str] = field(default_factory=list)  # flags among these that nothing reads


def flag_routes(operators: OperatorFlags, of_policy: Callable[[], Sequence[str]], emit: Emit) -> Sequence[Route]:
    """Return the routes that show, set and remove flags; `of_policy` returns those that its rules name."""
    routes = Routes()

    def reply(fault: str = "") -> FlagsReply:
        read = dict.fromkeys((*DEFAULTS, *of_policy()))
        unread = "no rule of the policy names the flag {!r}, so it changes nothing; flags that are read: {}"
        warnings = [unread.format(entry.flag, ", ".join(read)) for entry in operators.all if entry.flag not in read]
        return FlagsReply(operators.all, fault or None, warnings)

    @routes.get("/admin/flags", roles=WATCHERS, summary="Flags that operators set; not those of file or provider")
    async def flags() -> FlagsReply:
        return reply()

    @routes.put("/admin/flags", roles=OPERATORS, summary="Set a flag for all replicas")
    async def set_flag(body: Annotated[FlagBody, read_body(FlagBody)], caller: SignedIn) -> FlagsReply:
        if (body.value is None) == (body.definition is None):
            raise InvalidParameter("allowed: either value, true or false, or definition", param="value")
        definition = body.definition or plain_definition(value=bool(body.value))
        reason = await to_thread.run_sync(shown_reason, body.reason)
        before = operators.entry(body.flag)
        fault = operators.set(body.flag, definition, by=caller.actor, reason=reason)
        emit(_event("flags.set", caller.actor, body.flag, before, _plain(operators.entry(body.flag))))
        return reply(fault)

    @routes.delete("/admin/flags", roles=OPERATORS, summary="Leave a flag to its file or provider again")
    async def remove_flag(
        query: Annotated[FlagRemovedQuery, read_query(FlagRemovedQuery)], caller: SignedIn
    ) -> FlagsReply:
        before = operators.entry(query.flag)
        if before is None:
            known = ", ".join(entry.flag for entry in operators.all) or "none is set"
            raise InvalidParameter(f"flag is {query.flag!r}; allowed: {known}", param="flag")
        reason = await to_thread.run_sync(shown_reason, query.reason)
        fault = operators.remove(query.flag, by=caller.actor, reason=reason)
        emit(_event("flags.removed", caller.actor, query.flag, before, {"reason": reason}))
        return reply(fault)

    return routes.all


def _plain(entry: SetFlag | None) -> dict[str, object] | None:
    return None if entry is None else {**asdict(entry), "at": entry.at.isoformat()}


def _event(action: str, actor: str, flag: str, before: SetFlag | None, after: object) -> AuditEvent:
    return AuditEvent(actor=actor, action=action, subject=flag, before=_plain(before), after=after)
