"""Which arm a request goes to: a function of its key, the same on every replica and after every restart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from prolepsis.core.ended import AssignedArm, Assignment, run_name
from prolepsis.policy.explain import position
from prolepsis.policy.model import Mode, Policy, Terms, plain_match, plain_terms
from prolepsis.policy.rollout_terms import RolloutSettings
from prolepsis.rollout.machine import ACTIVE, RolloutState, Stepped, canary_share, guardrails_of, step
from prolepsis.statistics.arms import Arm, Histogram
from prolepsis.statistics.judge import StageEvidence

"""The rest runs as the control does until the rollout is on, then as the canary."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Shares of keys; the standing control is never moved, so there is something to compare with to the end."""

    canary: float
    control: float = 0.05

    def __post_init__(self) -> None:
        assert self.canary >= 0.0, "shares are in [0, 1]"
        assert self.control >= 0.0, "shares are in [0, 1]"
        assert self.canary + self.control <= 1.0 + 1e-9, "shares are together at most 1"


def arm_of(key: str, rollout_id: str, weights: Weights) -> AssignedArm:
    """Return the arm of all requests with `key`.

    The canary grows from below and the control stands at the top, so a key that is on the canary at 1 % stays on it at
    5 %. Another rollout deals anew. The rest is compared as control. Verdicts are exact with one key for each request;
    with one for each conversation they are wrong somewhat more often, and with one for each tenant they do not hold.
    """
    place = position(rollout_id, key) / 100.0
    if place < weights.canary:
        return "canary"
    return "control" if place >= 1.0 - weights.control else "rest"


_DIGEST_LENGTH = 8


@dataclass(frozen=True, slots=True)
class RolloutTarget:
    """One rule, as it is rolled out."""

    rollout_id: str
    """RULE@DIGEST, of its conditions and terms and of the model: what is edited is rolled out anew, what is put back
    goes on where it stood."""
    rule: str
    settings: RolloutSettings
    starts_itself: bool


def targets_of(policy: Policy, model: str) -> Mapping[str, RolloutTarget]:
    """Return the traffic classes of a policy without errors by the names of their rules; `model` is the one served."""
    conditions: dict[str, object] = {rule.name: plain_match(rule.match) for rule in policy.rules}
    return {
        name: RolloutTarget(
            rollout_id=f"{name}@{_digest([model, conditions.get(name), _drafting(terms)])}",
            rule=name,
            settings=terms.rollout.settings(terms.guardrails, terms.shadow_percentage),
            starts_itself=terms.rollout.gate == "automatic",
        )
        for name, terms in policy.named_terms()
        if terms.rollout is not None
    }


def _drafting(terms: Terms) -> dict[str, object]:
    """Return the terms that change how requests are served; what is kept of them changes nothing that is judged."""
    return plain_terms(replace(terms, audit=None))


def _digest(content: object) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_DIGEST_LENGTH]


REFERENCE_REQUESTS = 100
"""Requests of the control whose quantiles a stage is judged by; with fewer its quantiles wait."""
Histories = Mapping[str, Histogram]
"""What plain requests showed since the stage began, by what is measured."""


class LiveRollout:
    """Holds state and evidence as frozen values: whoever reads them in a thread sees one moment. One event loop."""

    def __init__(self, target: RolloutTarget, state: RolloutState) -> None:
        self.target = target
        self.others: tuple[StageEvidence, ...] = ()
        """Evidence of other replicas, and of earlier lives of this one."""
        self._begin(state)
        self.take(state)

    @property
    def settings(self) -> RolloutSettings:
        return self.target.settings

    def take(self, state: RolloutState) -> None:
        """Go on from `state`; a stage that is new begins without evidence."""
        if not self.evidence.belongs_to(state.rollout_id, state.run, state.stage):
            self._begin(state)
        self.state = state
        self._guardrails = guardrails_of(state, self.settings)

    def _begin(self, state: RolloutState) -> None:
        self.evidence = StageEvidence(state.rollout_id, state.stage, run=state.run)
        self._histories: dict[str, Histogram] = {}

    def assign(self, key: str) -> Assignment:
        """Return what the request with `key` gets now."""
        state, settings = self.state, self.settings
        shadow = state.phase in ACTIVE and settings.stages[state.stage].kind == "shadow"
        verifying = canary_share(state, settings)
        share = settings.stages[state.stage].share if shadow else verifying
        arm = arm_of(key, state.rollout_id, Weights(share, settings.standing_control))
        mode: Mode = "off" if arm != "canary" else "shadow" if shadow else "on"
        return Assignment(state.rollout_id, state.run, state.stage, arm, mode, verifying)

    def observe(self, assignment: Assignment, values: Mapping[str, float]) -> None:
        """Count one finished request, given its values by what was measured; less than 0.1 ms."""
        self._remember(assignment, values)
        arm = self._arm(assignment)
        if arm is not None:
            self.evidence = self.evidence.observe(self._guardrails, arm, values)

    def observe_more(self, assignment: Assignment, values: Mapping[str, float]) -> None:
        """Take in what was measured later of a request that is counted already."""
        self._remember(assignment, values)
        arm = self._arm(assignment)
        if arm is not None:
            self.evidence = self.evidence.observe_more(self._guardrails, arm, values)

    def _remember(self, assignment: Assignment, values: Mapping[str, float]) -> None:
        if assignment.mode == "off":
            for name, value in values.items():
                self._histories[name] = self._histories.get(name, _NO_HISTORY).observe(value)

    def _arm(self, assignment: Assignment) -> Arm | None:
        """Return the arm that a request is evidence for; None where it is for none any more."""
        if (
            not self.evidence.belongs_to(assignment.rollout_id, assignment.run, assignment.stage)
            or self.state.phase not in ACTIVE
        ):
            return None
        if assignment.arm == "canary":
            return "canary"
        return "control" if self.settings.stages[assignment.stage].kind == "canary" else None

    @property
    def all_evidence(self) -> StageEvidence:
        """What all replicas saw of the stage."""
        state, total = self.state, self.evidence
        for other in self.others:
            if other.belongs_to(state.rollout_id, state.run, state.stage):
                total += other
        return total

    @property
    def histories(self) -> Histories:
        return dict(self._histories)


def look(
    state: RolloutState, evidence: StageEvidence, histories: Histories, now: float, settings: RolloutSettings
) -> Stepped:
    """Return the state at `now`, with the references that a stage needs and plain requests can give by now."""
    after, events = step(state, evidence, now, settings)
    return referenced(state, after, histories, settings), events


def referenced(
    before: RolloutState, after: RolloutState, histories: Histories, settings: RolloutSettings
) -> RolloutState:
    """Return the state `after` with references for its stage, as one change from `before`.

    Where the stage is new, for all guardrails there is a history of; later only for those that cannot be judged
    without, so that nothing changes under what was counted already.
    """
    if after.phase not in ACTIVE:
        return after
    is_new = (before.run, before.stage) != (after.run, after.stage)
    found: dict[str, float] = {}
    for guardrail in guardrails_of(after, settings):
        history = histories.get(guardrail.metric, _NO_HISTORY)
        reference = guardrail.measure.reference_from(history) if history.count >= REFERENCE_REQUESTS else None
        if reference is not None and (is_new or not guardrail.measure.ready):
            found[guardrail.name] = reference
    if not found:
        return after
    return replace(after, version=before.version + 1, references={**after.references, **found})


def stopped_runs(before: RolloutState, after: RolloutState) -> Sequence[str]:
    """Return the names to stop in the engine where the change took back what requests in flight were given."""
    taken_back = before.run > 0 and (after.phase == "rolled_back" or after.run != before.run)
    return (run_name(before.rollout_id, before.run),) if taken_back else ()


_NO_HISTORY = Histogram()
