"""Verdicts while serving: made each second of the readings that other features have, kept in the store."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import structlog
from prometheus_client import CollectorRegistry
from pydantic import AwareDatetime

from prolepsis.control.cost.comparison import ArmComparison
from prolepsis.control.cost.pilot import PilotReport
from prolepsis.control.health.drift import Key
from prolepsis.control.policy.decision import off_by_rule
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import StoredDocument, key
from prolepsis.control.verdict.commands import VERDICTS
from prolepsis.control.verdict.stored import VERDICTS_KEPT
from prolepsis.control.verdict.verdict import (
    JudgeReading,
    LatestModes,
    RolloutStanding,
    RuleReadings,
    RuleVerdict,
    followed,
    judge_rule,
)
from prolepsis.control.web.body_reader import read_query
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import READERS, Routes
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.ended import RequestEnded
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.facts import NO_RULE, rule_of_class
from prolepsis.core.kill_scope import EVERYTHING, kill_scope
from prolepsis.core.reasons import Judge
from prolepsis.core.stats import Mode
from prolepsis.core.telemetry.declare import gauge
from prolepsis.core.traffic_sums import RatioSums

KEPT_EVERY_S = 60.0
"""A verdict whose figures alone changed is stored this often."""
_RATE_OF = 64  # of the last compared requests is the rate at which they come

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class VerdictsReply:
    verdicts: list[RuleVerdict]
    reports: list[PilotReport]  # of the period that was asked for, from records; none without one


class VerdictsQuery(Body):
    since: AwareDatetime | None = None  # compare the requests that ended from then on


class VerdictFeature(Feature):
    """Belongs to one event loop."""

    name = "verdict"
    period_s = 1.0

    def __init__(
        self,
        registry: CollectorRegistry,
        database: Database,
        *,
        rules: Callable[[], Mapping[str, Mode]],
        standings: Callable[[], Mapping[str, RolloutStanding]],
        compared: Callable[[], Awaitable[Mapping[str, ArmComparison]]],
        against: Callable[[], Sequence[tuple[Key, Judge, str]]] = tuple,
        killed: Callable[[], Collection[str]] = tuple,
        report: Callable[[float], list[PilotReport]],
        emit: Emit = discard,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`rules`: of the policy in use with their modes, none without one; `standings`: of those that are rolled out;
        `compared`: all requests of their newest stages, by rollout; `against`: what judges hold against proposers;
        `killed`: scopes that are stopped; `report`: of the requests since a Unix time.
        """
        text = "1: the verdict on a rule of the policy, in words"
        self._gauge = gauge(registry, "rule_verdict", text, "rule", "verdict", most=64)
        self._database, self._emit, self._now = database, emit, now
        self._rules, self._standings, self._compared = rules, standings, compared
        self._against, self._killed = against, killed
        self._modes = LatestModes()
        self._predicted: dict[str, RatioSums] = {}
        self._times: dict[str, deque[float]] = {}
        self._kept_at = -KEPT_EVERY_S
        self._stored: dict[str, RuleVerdict] | None = None
        """As they were last read from the store, or written; None: not yet read."""
        self.verdicts: dict[str, RuleVerdict] = {}
        """By rule, in the policy's order."""
        routes = Routes()
        self.routes = routes.all

        @routes.get(VERDICTS.path, roles=READERS, summary=VERDICTS.help)
        async def shown(query: Annotated[VerdictsQuery, read_query(VerdictsQuery)]) -> VerdictsReply:
            await self._judge()
            since = query.since
            made = await asyncio.to_thread(report, since.timestamp()) if since is not None else []
            return VerdictsReply([*self.verdicts.values()], made)

    async def of(self, rule: str) -> RuleVerdict | None:
        """Return the verdict on a rule; one that is new to the policy is judged now."""
        if rule not in self.verdicts:
            await self._judge()
        return self.verdicts.get(rule)

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count a request for what its rule's latest requests did."""
        about = ended.about
        rule, drawn = about.policy_rule or NO_RULE, about.assignment
        is_control = drawn is not None and drawn.share > 0.0 and drawn.arm != "canary"
        for prompt in ended.prompts:
            if prompt.answer not in ("complete", "cut") or not prompt.stats.num_output_tokens:
                continue
            device, mode = prompt.stats.device, prompt.stats.mode
            if not is_control:
                self._modes.observe(rule, mode)
            if mode.mode == "on" and device.predicted_plain:
                self._predicted.setdefault(rule, RatioSums()).add(device.total, device.predicted_plain)
            if about.canary_share is not None:
                self._times.setdefault(rule, deque(maxlen=_RATE_OF)).append(self._now())

    async def tick(self) -> None:
        """Make the verdicts, and keep those that changed."""
        if self._stored is None:
            with suppress(StoreUnavailable):  # without them a verdict holds since now
                self._stored = await asyncio.to_thread(self._read)
        await self._judge()
        if self._now() - self._kept_at >= KEPT_EVERY_S or self._changed():
            with suppress(StoreUnavailable):  # tried again with the next tick
                await asyncio.to_thread(self._keep, dict(self.verdicts))
                self._kept_at = self._now()

    async def _judge(self) -> None:
        rules = self._rules() or {NO_RULE: "on"}
        for counts in (self._predicted, self._times):
            for gone in [rule for rule in counts if rule not in rules]:
                del counts[gone]
        self._modes.keep([*rules])
        standings, now = self._standings(), self._now()
        compared, against = await self._compared(), self._against()
        made = dict[str, RuleVerdict]()
        for rule, mode in rules.items():
            before = self.verdicts.get(rule) or (self._stored or {}).get(rule)
            known = self._readings(rule, mode, standings.get(rule), compared, against, before=before)
            made[rule] = followed(judge_rule(known), before, now)
            if before is not None and before.verdict != made[rule].verdict:
                self._report(made[rule], before)
        self.verdicts.clear()
        self.verdicts |= made
        self._gauge.clear()
        for rule, verdict in made.items():
            self._gauge.labels(rule, verdict.verdict).set(1)

    def _readings(
        self,
        rule: str,
        mode: Mode,
        standing: RolloutStanding | None,
        compared: Mapping[str, ArmComparison],
        against: Sequence[tuple[Key, Judge, str]],
        *,
        before: RuleVerdict | None,
    ) -> RuleReadings:
        killed, predicted = self._killed(), self._predicted.get(rule)
        was_harmed = before is not None and before.reason == "harmed"
        spent = predicted.interval if predicted is not None else None
        off = off_by_rule(rule) if mode == "off" else self._modes.off(rule)
        is_killed = EVERYTHING in killed or kill_scope("rule", rule) in killed
        others = [JudgeReading("guardrails", standing.guardrails)] if standing and standing.guardrails else []
        for (proposer, traffic_class), judge, says in against:
            if rule_of_class(traffic_class) == rule:
                others.append(JudgeReading(judge, says, f"{proposer} in {traffic_class}"))
        return RuleReadings(
            rule=rule,
            rollout=standing.rollout if standing else "",
            compared=compared.get(standing.rollout) if standing else None,
            harmed=standing is not None and standing.is_rolled_back and (standing.harmed or was_harmed),
            off="killed" if is_killed else off,
            compared_per_s=_rate(self._times.get(rule, ())),
            predicted=None if spent is None or spent.estimate is None else 1.0 - spent.estimate,
            others=others,
        )

    def _report(self, verdict: RuleVerdict, before: RuleVerdict) -> None:
        log.info("verdict_changed", rule=verdict.rule, verdict=verdict.verdict, rests_on=verdict.rests_on)
        was, after = ({"verdict": one.verdict, "rests_on": one.rests_on} for one in (before, verdict))
        self._emit(AuditEvent(actor=SERVER, action="verdict.changed", subject=verdict.rule, before=was, after=after))

    def _changed(self) -> bool:
        stored = self._stored or {}
        return {rule: verdict.verdict for rule, verdict in stored.items()} != {
            rule: verdict.verdict for rule, verdict in self.verdicts.items()
        }

    def _read(self) -> dict[str, RuleVerdict]:
        with self._database.read() as connection:
            return VERDICTS_KEPT.by_key(connection)

    def _keep(self, verdicts: dict[str, RuleVerdict]) -> None:
        with self._database.write() as connection:
            VERDICTS_KEPT.remove(connection, key.not_in(verdicts))
            VERDICTS_KEPT.put(connection, [StoredDocument(rule, one, one.since) for rule, one in verdicts.items()])
        self._stored = verdicts


def _rate(times: Sequence[float]) -> float | None:
    """Return how many come a second."""
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else None
