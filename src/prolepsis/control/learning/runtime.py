"""Learning while serving: looks for what is due, starts its process, and steps the run by what this server sees."""

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from subprocess import Popen

import structlog

from prolepsis.control.drafts.heads import DraftHeads
from prolepsis.control.health.drift import Key
from prolepsis.control.learning.following import Following, HeadFolder, Stored
from prolepsis.control.learning.machine import TRIED, Ended, LearningEvent, RolloutSeen, champion_of, step
from prolepsis.control.learning.triggers import RuleNews, due, last_of
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.store.database import database_time
from prolepsis.control.store.examples import ExampleTable
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.control.store.turns import PeriodicWork
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.config import CANDIDATE_HEAD, DAY_S, DRAFT_HEAD, LEARNT_HEAD
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.facts import rule_of_class
from prolepsis.core.json_value import digest_of
from prolepsis.core.learning import LearningRun, Phase, Trigger
from prolepsis.core.reasons import Judge

LOOK_S = 60.0  # between two looks at what is due, and between two starts of a process, of all servers together
AGAIN_S = 3600.0  # after a run that failed or was stopped, before the next one is due
WATCHED_S = 7 * DAY_S  # so long a promoted head is watched for harm
PAUSE_S = 30.0  # for which a run pauses where requests are served beside it
GIVEN_UP_S = 3600.0
MOST_STARTS = 3  # of one run's process, by one server
_ACTS: Mapping[Phase, str] = {"due": "due", "training": "started", "trial": "trial"}  # of a run that has not ended
_TOLD = ("run_id", "rule", "head", "parent", "trigger", "why", "reason")

log = structlog.get_logger(__name__)


class LearningFeature(Feature):
    """Belongs to one event loop; what waits runs in threads."""

    name = "learning"
    period_s = 2.0

    def __init__(
        self,
        context: Context,
        policies: Policies,
        rollouts: Rollouts,
        heads: DraftHeads,
        *,
        folder: HeadFolder,
        start: Callable[[LearningRun], "Popen[bytes]"],
        against: Callable[[], list[tuple[Key, Judge, str]]],
        targets: Callable[[], Collection[str]],
        now: Callable[[], float] | None = None,
    ) -> None:
        """`start` begins the process of a run; `against`: what is held against proposers (`HealthFeature.against`).

        `targets`: weights of the targets of all servers that share the store. `now`: None is the database's time.
        """
        self.policies, self.rollouts, self.database = policies, rollouts, context.database
        self._client, self._emit, self._monotonic = context.client, context.emit, context.monotonic
        self._start, self._against, self._served_targets = start, against, targets
        self._runs, self._lineage = RunTable(self.database, now), LineageTable(self.database, now or time.time)
        self._work = PeriodicWork(self.database, now=database_time if now is None else lambda _: now())
        self.following = Following(context.client, policies, rollouts, heads, self._lineage, folder)
        self._targets: dict[str, str] = {}  # of data sets, by their keys
        self._alone = "", 0.0  # a run of a target that no server has, and since when
        self._told: tuple[object, ...] = ()  # where the run was
        self._process: Popen[bytes] | None = None
        self._num_starts = 0
        self._looks_at = 0.0
        self._quiet_until = 0.0  # nothing was ever learnt here

    async def tick(self) -> None:
        """Step the run, and follow the store; while that is away, everything stays as it is."""
        if not self.policies.learning and self._monotonic() < self._quiet_until:
            return
        with suppress(StoreUnavailable):  # the writer reports it
            stored = await self.read()
            if not stored.heads and stored.run.phase == "ended":
                self._quiet_until = self._monotonic() + LOOK_S
            event = await self._event(stored)
            if event is not None and await self.step(stored, event):
                stored = await self.read()
            await self.following.follow(stored)
            await self._watch(stored)
            if stored.run.phase == "ended":
                await self._look(stored)
            elif stored.run.phase in ("due", "training") and stored.run.target == self._client.info.weights:
                await self._train(stored)

    async def close(self) -> None:
        """End the process that this server started; its run goes on from its checkpoint where the next one starts."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, 10.0)

    async def read(self) -> Stored:
        """Raises `StoreUnavailable`."""
        stored = await asyncio.to_thread(self._read)
        self._tell(stored.run)
        return stored

    def _read(self) -> Stored:
        run, heads, target = self._runs.read(), self._lineage.heads(), self._client.info.weights
        if not self._targets.keys() >= {key for lineage in heads.values() for key in lineage.manifests}:
            self._targets = {key: manifest.target for key, manifest in self._lineage.datasets().items()}
        known = {key for key, name in self._targets.items() if name.startswith(target)}
        fitting = {label: lineage for label, lineage in heads.items() if known.issuperset(lineage.manifests)}
        return Stored(run, heads, fitting, self._runs.now())

    async def step(self, stored: Stored, event: LearningEvent, by: str = SERVER) -> bool:
        """Carry out and store what an event leads to; return whether it changed the run, and no one was faster."""
        after, decides = step(stored.run, event, stored.now)
        if after == stored.run:
            return False
        if decides and after.outcome == "promoted":
            await asyncio.to_thread(self._lineage.promoted, after.head)
        elif decides:
            await self.retire(after.head, after.reason or str(after.outcome), by)
        is_first = await asyncio.to_thread(self._runs.swap, after)
        if is_first:
            self._tell(after, by)
        return is_first

    async def retire(self, head: str, why: str, by: str = SERVER) -> None:
        """Bar a head from drafting for good; each server takes it out with its next tick."""
        if await asyncio.to_thread(self._lineage.retire, head, why):
            self._emit(AuditEvent(actor=by, action="head.retired", subject=head, after={"why": why}))

    async def begin(self, stored: Stored, rule: str, trigger: Trigger, why: str, by: str = SERVER) -> bool:
        """Make a run due, from the rule's champion; return whether it was, as no other is under way."""
        info, terms = self._client.info, self.policies.learning[rule].model_dump(mode="json")
        parent = champion_of(stored.fitting, [rule], to_learn_from=True)
        due = LearningRun(
            rule=rule, trigger=trigger, why=why, model=info.model, target=info.weights, parent=parent, terms=terms
        )
        return await self.step(stored, due, by)

    async def _event(self, stored: Stored) -> LearningEvent | None:
        """Return what has happened to the run, as far as this server sees it."""
        run, lineage = stored.run, stored.heads.get(stored.run.head)
        event: LearningEvent | None = None
        if lineage is not None and lineage.retired:
            event = Ended("forgotten" if "forgotten" in lineage.retired else "rolled_back", lineage.retired)
        elif run.phase != "ended" and run.target != self._client.info.weights:
            event = self._given_up(stored)
        elif run.phase != "ended" and self.policies.version and not self._agrees(run):
            event = Ended("stopped", f"by the policy in use {run.rule}, or a tenant of it, does not learn any more")
        elif run.phase in TRIED and (refusal := self.following.refused.get((CANDIDATE_HEAD, run.head))):
            event = Ended("failed", refusal)
        elif run.phase in TRIED and (state := self.following.trial(run)) is not None:
            event = RolloutSeen(state.phase)
            if state.phase == "rolled_back":
                events = await self.rollouts.events(state.rollout_id)
                reasons = [each.reason for each in events if each.kind == "rolled_back"]  # the last is stored later
                event = Ended("rolled_back", reasons[-1] if reasons else "its rollout was rolled back")
        return event

    def _agrees(self, run: LearningRun) -> bool:
        """Return whether the rule learns still, and while the run reads its examples, whether their tenants agree."""
        terms, tenants = self.policies.learning.get(run.rule), run.terms.get("tenants", ())
        agree = terms is not None and isinstance(tenants, Collection) and {*tenants} <= {*terms.tenants}
        return agree if run.phase in ("due", "training") else terms is not None

    def _given_up(self, stored: Stored) -> Ended | None:
        """End a run, which would keep others waiting, if no server has had its target for an hour, and none trains."""
        run, now = stored.run, self._monotonic()
        if run.target in self._served_targets() or run.leased_until > stored.now or run.run_id != self._alone[0]:
            self._alone = run.run_id, now
        return Ended("failed", "no server has its target") if now - self._alone[1] > GIVEN_UP_S else None

    async def _watch(self, stored: Stored) -> None:
        """Retire a head that was promoted of late if its drafts fell off a cliff, or bring nothing any more."""
        head = self._client.info.heads.get(LEARNT_HEAD, "")
        lineage = stored.fitting.get(head)
        if lineage is None or lineage.retired or stored.now - lineage.promoted_at > WATCHED_S:
            return
        for (proposer, traffic_class), judge, says in self._against():
            is_its = proposer == LEARNT_HEAD and rule_of_class(traffic_class) == lineage.rule
            if is_its and (judge == "benefit" or says == "cliff"):
                await self.retire(head, f"{judge}: {says} in {traffic_class}")

    async def _look(self, stored: Stored) -> None:
        """Begin the run that is due, once a minute, by one of the servers of this target."""
        rules, info, now = self.policies.learning, self._client.info, self._monotonic()
        fails = stored.run.outcome in ("failed", "stopped") and stored.now - stored.run.since < AGAIN_S
        if not rules or fails or now < self._looks_at:
            return
        self._looks_at = now + LOOK_S
        if await asyncio.to_thread(self._work.take, f"learning {info.weights}", LOOK_S / 2):
            news = await asyncio.to_thread(self._news, self._drifted(), rules)
            found = due(rules, news, datetime.fromtimestamp(stored.now, UTC))
            if found is not None:
                await self.begin(stored, *found)

    def _drifted(self) -> frozenset[str]:
        """Return the rules whose drafts something is held against; the health of drafts belongs to the event loop."""
        return frozenset(
            rule_of_class(traffic_class)
            for (proposer, traffic_class), judge, _ in self._against()
            if proposer in (DRAFT_HEAD, LEARNT_HEAD) and judge in ("drift", "benefit")
        )

    def _news(self, drifted: Collection[str], rules: Mapping[str, LearningTerms]) -> Mapping[str, RuleNews]:
        manifests, info, news = [*self._lineage.datasets().values()], self._client.info, dict[str, RuleNews]()
        for rule, terms in rules.items():
            last, is_new_target = last_of(manifests, rule, info.weights)
            totals = [
                total
                for total in ExampleTable(self.database).totals(rule=rule, since=last.last_at if last else 0.0)
                if total.tokenizer == info.tokenizer and total.tenant in terms.tenants
            ]
            if totals:
                since = last.made_at if last else min(total.first_at for total in totals)
                number = sum(total.num_tokens for total in totals)
                news[rule] = RuleNews(since, number, drifted=rule in drifted, is_new_target=is_new_target)
        return news

    async def _train(self, stored: Stored) -> None:
        """Start what trains, again where it ended without a word; let it pause while requests are served beside it."""
        run, health = stored.run, self._client.health()
        if run.leased_until > stored.now:
            is_here = run.holder.partition(" ")[0] == socket.gethostname()
            if is_here and (health.num_running or health.num_waiting) and run.paused_until < stored.now + PAUSE_S / 2:
                await asyncio.to_thread(self._runs.swap, replace(run, paused_until=stored.now + PAUSE_S))
        elif run.terms.get("run") == "elsewhere" or (self._process is not None and self._process.poll() is None):
            return
        elif self._num_starts >= MOST_STARTS:
            reason = f"its process ended {MOST_STARTS} times; `prolepsis learning run {run.rule}` says why"
            await self.step(stored, Ended("failed", reason))
        elif await asyncio.to_thread(self._work.take, "learning start", LOOK_S):
            self._num_starts += 1
            self._process = await asyncio.to_thread(self._start, run)

    def _tell(self, run: LearningRun, by: str = SERVER) -> None:
        """Tell log and audit log where the run is. Each server does; the audit log has it once."""
        told, self._told = self._told, (run.run_id, run.phase, run.outcome)
        if told == self._told:
            return
        if told[:1] != self._told[:1]:
            self._num_starts = 0
        act = run.outcome or _ACTS.get(run.phase)
        if act is not None:
            after = {name: getattr(run, name) for name in _TOLD}
            log.info("learning", act=act, **after)
            uid, subject = digest_of(self._told)[:32], run.head or run.rule
            self._emit(AuditEvent(actor=by, action=f"learning.{act}", subject=subject, after=after, uid=uid))
