"""The policy in use while serving: it follows its source, and decides how each request speculates."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal, Protocol

import structlog

from prolepsis.control.health.eligibility import UNLIMITED, Conditions, DraftLimits, Eligibility, EligibilityTerms
from prolepsis.control.policy.check import Known, check
from prolepsis.control.policy.decision import (
    ALONE,
    Conflict,
    Decision,
    SpeculationRequest,
    conflict,
    decide,
    decide_alone,
)
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.policy.model import DEFAULT_RULE, Policy, Terms, control_terms
from prolepsis.control.policy.source import NOT_READ, PolicySource
from prolepsis.control.web.feature import Feature
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.config import CANDIDATE_HEAD
from prolepsis.core.ended import Assignment
from prolepsis.core.extras import LANGUAGE
from prolepsis.core.facts import MAX_CLASS_RULES, OTHER_RULES, FlagDecision, RequestFacts, traffic_class_of
from prolepsis.core.stats import Mode

_NO_POLICY = Policy()

log = structlog.get_logger(__name__)


LimitsOf = Callable[[Terms, str], DraftLimits]  # terms and traffic class -> what is left of the terms


def unlimited(terms: Terms, traffic_class: str) -> DraftLimits:
    """Return no limits, for decisions that no evidence exists for."""
    return UNLIMITED


class Assigner(Protocol):
    """The rollouts, as the policy sees them."""

    def adopt(self, policy: Policy, in_force: Mapping[str, Terms]) -> None:
        """Roll out the rules of this policy that ask for it, by the terms in force, and no others."""

    def assign(self, rule: str, key: str, sticky: str | None = None) -> Assignment:
        """Return the assignment of the request with `key`, or of all that share `sticky`; `rule` is rolled out."""


class Policies(Feature):
    """Holds the policy in use; it and its rollouts change in one step of the event loop that they belong to."""

    name = "policy"
    period_s = 0.8

    def __init__(
        self,
        source: PolicySource,
        loaded: Collection[str],
        rollouts: Assigner,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        emit: Emit = discard,
        flags: bool | None = None,
        replays: bool = True,
        bills_time: bool = True,
    ) -> None:
        """`loaded`: proposers of the engine; `flags`, `replays`: whether flags are asked, requests decoded again.

        `bills_time`: device time is billed.

        `emit` takes events for the audit log. The log of the server warns of rules that wait for something absent.
        """
        self.now = now
        self.source = source
        self.policy: Policy | None = None
        self.terms: Mapping[str, Terms] = {}
        """Terms in force by rule, the default among them: the policy's, unless something was learnt for a rule."""
        self._learnt: dict[str, Callable[[Terms], Terms] | None] = {}
        self._num_learnt = 0  # changes so far
        self._class_rules: frozenset[str] = frozenset()
        installed = LANGUAGE.is_installed
        self.known = Known(
            loaded=loaded, flags=flags, replays=replays, bills_time=bills_time, detects_language=installed
        )
        """The names and features of this server."""
        self._rollouts = rollouts
        self._emit = emit
        self._lock = asyncio.Lock()
        if source.fault:
            log.error("policy_not_loaded", error=source.fault)
        if source.policy is not None:
            self._take("loaded")

    @property
    def version(self) -> str:
        """Return the version of the policy in use; empty if there is none."""
        return self.policy.full_version if self.policy else ""

    @property
    def rule_modes(self) -> Mapping[str, Mode]:
        """The rules of the policy in use with their modes, the default among them; none if there is no policy."""
        return {name: terms.mode for name, terms in self.policy.named_terms()} if self.policy else {}

    @property
    def conditions(self) -> tuple[str, Conditions]:
        """Return a version of the terms in force, empty without a policy, and what they ask of traffic classes."""
        return self.version and f"{self.version}+{self._num_learnt}", _conditions(self.terms.values())

    @property
    def learning(self) -> Mapping[str, LearningTerms]:
        """The terms of learning of the policy in use, by rule."""
        return {name: terms.learning for name, terms in self.terms.items() if terms.learning is not None}

    def learnt(self, rule: str, change: Callable[[Terms], Terms] | None) -> None:
        """Serve a rule by its terms as `change` gives them, after edits of the policy too; None: as the policy says.

        It holds while the rule has terms of learning. Text and version of the policy stay as they are.
        """
        self._learnt[rule] = change
        if self._in_force(self.policy) != self.terms:
            self._num_learnt += 1
            self._adopt(self.policy)

    def records(self, tenant: str) -> bool:
        """Return whether request records of a tenant may be kept: of none, while the policy could not be read yet."""
        return self.policy is None or (self.policy is not NOT_READ and self.policy.records(tenant))

    @property
    def detects_language(self) -> bool:
        """Whether the policy in use asks for a guess at languages that requests do not state."""
        return self.policy is not None and self.policy.traffic_classes.detect_language

    @property
    def flag_names(self) -> tuple[str, ...]:
        """The flags to be evaluated for a request before its decision."""
        return self.policy.flag_names if self.policy else ()

    def decide(
        self,
        requested: SpeculationRequest,
        facts: RequestFacts,
        flags: tuple[FlagDecision, ...] = (),
        limits_of: LimitsOf = unlimited,
    ) -> Decision | Conflict:
        """Return the decision by the first rule that matches; if there is no policy, the caller decides alone.

        `flags`: decisions of the flags that rules name; a flag without one is false. `limits_of` says what earlier
        drafts leave of a rule's terms.
        """
        policy = self.policy
        if policy is None:
            traffic_class = traffic_class_of(facts)
            return replace(decide_alone(requested, limits_of(ALONE, traffic_class)), traffic_class=traffic_class)
        facts = replace(facts, flag=frozenset(decision.key for decision in flags if decision.value)) if flags else facts
        rule = policy.rule_for(facts)
        name, own = (rule.name, rule.terms) if rule else (DEFAULT_RULE, policy.default_terms)
        terms = self.terms[name]
        is_learnt = terms is not own
        class_rule = None if rule is None else name if name in self._class_rules else OTHER_RULES
        traffic_class = traffic_class_of(facts, class_rule, policy.traffic_classes.parts_of(facts))
        assignment = None
        if terms.rollout is not None:
            assert facts.targeting_key is not None, "requests that are served have a key"
            assignment = self._rollouts.assign(name, facts.targeting_key, terms.rollout.sticky_key(facts))
        limits = limits_of(terms, traffic_class)
        if assignment is not None and terms.rollout is not None and terms.rollout.against is not None:
            control = control_terms(terms)
            of_control = limits_of(control, traffic_class)
            limits = of_control if limits.verifies and not of_control.verifies else limits  # both arms wait alike
            if assignment.mode == "shadow":  # no other proposer hides what a candidate does
                terms = terms.model_copy(update={"proposers": (CANDIDATE_HEAD,)})
            terms = terms if assignment.arm == "canary" else control
        contradiction = conflict(name, own if is_learnt else terms, requested)
        if contradiction is not None:
            return contradiction
        decision = decide(name, terms, requested, facts.targeting_key, assignment=assignment, limits=limits)
        return replace(
            decision,
            policy_version=policy.full_version,
            rule_flags=flags,
            traffic_class=traffic_class,
            is_recorded=self.records(facts.tenant),
        )

    async def tick(self) -> None:
        """Take over new content of the source; the last good policy stays if that cannot be used."""
        async with self._lock:
            seen = await asyncio.to_thread(self.source.poll)
            if seen.refused is not None:
                in_use = self.policy.full_version if self.policy else None
                log.error("policy_not_reloaded", error=str(seen.refused), in_use=in_use)
            elif seen.changed:
                self._take("reloaded")

    def _take(self, what: Literal["loaded", "reloaded"]) -> None:
        policy, source, before = self.source.policy, self.source.name, self.policy
        self._adopt(policy)
        self._class_rules = frozenset(rule.name for rule in policy.rules[:MAX_CLASS_RULES]) if policy else frozenset()
        version, rules = (policy.full_version, len(policy.rules)) if policy else (None, 0)
        log.info(f"policy_{what}", source=source, version=version, rules=rules)
        self._emit(
            AuditEvent(
                actor=SERVER,
                action=f"policy.{what}",
                subject=source,
                before=_recorded(before),
                after=_recorded(policy),
                versions={"policy": policy.full_version if policy else ""},
            )
        )
        for finding in check(policy, self.known) if policy else ():
            log.warning("policy_warning", finding=finding.in_file(source))

    def _adopt(self, policy: Policy | None) -> None:
        terms = self._in_force(policy)
        self._rollouts.adopt(policy or _NO_POLICY, terms)
        self.policy, self.terms = policy, terms

    def _in_force(self, policy: Policy | None) -> dict[str, Terms]:
        """Return the terms of a policy by rule, with what was learnt for them."""
        terms = dict(policy.named_terms()) if policy is not None else {}
        changed = {rule: self._learnt.get(rule) for rule, own in terms.items() if own.learning is not None}
        return terms | {rule: change(terms[rule]) for rule, change in changed.items() if change is not None}


def _conditions(in_force: Iterable[Terms]) -> Iterator[tuple[tuple[str, ...] | None, EligibilityTerms | None]]:
    for terms in in_force:
        yield terms.proposers, terms.eligible_while
        if terms.rollout is not None and terms.rollout.against is not None:
            control = control_terms(terms)
            yield control.proposers, control.eligible_while


def limits_by(eligibility: Eligibility) -> LimitsOf:
    """Return the limits of terms that would verify drafts, by what the drafts of their traffic class showed."""

    def limits(terms: Terms, traffic_class: str) -> DraftLimits:
        if terms.mode != "on":
            return UNLIMITED
        return eligibility.limits(traffic_class, terms.proposers, terms.eligible_while, terms.start)

    return limits


def _recorded(policy: Policy | None) -> Mapping[str, object] | None:
    """Return a policy as the audit log has it: its content, and who answers for it."""
    return None if policy is None else {**policy.content(), "owners": policy.owners}
