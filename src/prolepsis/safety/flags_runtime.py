"""Flags while serving: those of the provider and those that operators set; the kill flag is polled."""

import time
from collections.abc import Callable, Sequence
from typing import Literal

import structlog
from openfeature.flag_evaluation import Reason
from openfeature.provider import FeatureProvider
from prometheus_client import CollectorRegistry

from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.safety.flag_file import DEFAULTS, ENABLED, KILL, FlagFileProvider
from prolepsis.safety.flag_routes import flag_routes
from prolepsis.safety.flags import Flags
from prolepsis.safety.shared_flags import SharedFlags, stricter
from prolepsis.telemetry.declare import counter
from prolepsis.web.feature import Feature

KILL_PERIOD_S = 1.0
"""Seconds between two evaluations of the kill flag; a changed file is evaluated at once."""

log = structlog.get_logger(__name__)


class FlagsFeature(Feature):
    """Evaluates the flags of the configured provider, and those that operators set. Belongs to one event loop."""

    name = "flags"
    period_s = 0.2
    ticks_before_serving = True

    def __init__(
        self,
        provider: FeatureProvider | None,
        shared: SharedFlags,
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
        self.shared = shared
        self.routes = flag_routes(shared, of_policy, emit)
        self._file = provider if isinstance(provider, FlagFileProvider) else None
        self._flags = Flags(provider) if provider is not None else None
        self._on_kill = on_kill
        self._emit = emit
        self._clock = clock
        self._kill_due = float("-inf")
        self._kill_shared: FlagDecision | None = None
        self._kill_provided: FlagDecision | None = None
        """The provider's last good answer."""
        text, labels = "Flags evaluated for requests", ("flag", "variant", "reason", "error")
        self._evaluations = counter(registry, "flag_evaluations", text, *labels)
        self._refused = counter(registry, "flag_file_refused", "Edits of the flag file that were refused")
        if self._file is not None:
            self._show(self._file, "loaded")

    async def enabled(self, facts: RequestFacts) -> FlagDecision | None:
        """Return whether the request may speculate, None if no flag says; a provider's failure raises nothing."""
        provided = await self._flags.enabled(facts) if self._flags is not None else None
        return self._counted(stricter(ENABLED, provided, self.shared.decide(ENABLED, facts)))

    async def named(self, keys: Sequence[str], facts: RequestFacts) -> tuple[FlagDecision, ...]:
        """Return the values of these flags for the request; a missing flag is false."""
        provided = {one.key: one for one in (await self._flags.named(keys, facts) if self._flags is not None else ())}
        found = (stricter(key, provided.get(key), self.shared.decide(key, facts)) for key in keys)
        return tuple(decision for one in found if (decision := self._counted(one)) is not None)

    async def tick(self) -> None:
        """Reload the file if it changed, and evaluate the kill flag if that is due."""
        shared = self.shared.decide(KILL)
        is_new, self._kill_shared = shared != self._kill_shared, shared
        if self._reload() or is_new or self._clock() >= self._kill_due:
            self._kill_due = self._clock() + KILL_PERIOD_S
            await self._poll_kill(is_new=is_new)

    async def _poll_kill(self, *, is_new: bool) -> None:
        provided = await self._flags.killed() if self._flags is not None else None
        if provided is not None and not provided.error:
            self._kill_provided = provided
        decision = stricter(KILL, self._kill_provided, self._kill_shared)
        if decision is None and is_new:  # neither provider nor operator sets it any more
            decision = FlagDecision(KILL, DEFAULTS[KILL], None, Reason.DEFAULT)
        if decision is not None:
            self._on_kill(decision)

    async def close(self) -> None:
        if self._flags is not None:
            self._flags.close()

    def _reload(self) -> bool:
        """Return whether the flags changed."""
        if self._file is None:
            return False
        before = self._file.file.value
        reload = self._file.poll()
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

    def _show(self, provider: FlagFileProvider, what: Literal["loaded", "reloaded"], before: object = None) -> None:
        flags, path = provider.file.value, str(provider.file.path)
        log.info(f"flags_{what}", file=path, version=flags.version, flags=sorted(flags.keys))
        self._emit(
            AuditEvent(
                actor=SERVER,
                action=f"flags.{what}",
                subject=path,
                before=before,
                after=flags.content,
                versions={"flags": flags.version},
            )
        )
