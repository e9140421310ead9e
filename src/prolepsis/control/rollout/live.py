"""One rollout while it is served: the arm of each request, the evidence so far, and the next stage from both.

The arm is a function of the request's key, the same on every replica and after every restart.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from prolepsis.control.policy.model import Policy, Terms, control_terms, plain_match, plain_terms
from prolepsis.control.policy.rollout_terms import TrialTerms
from prolepsis.control.rollout.machine import (
    ACTIVE,
    JUDGED,
    RolloutState,
    Transition,
    canary_share,
    evidence_stage,
    guardrails_of,
    step,
)
from prolepsis.control.rollout.settings import RolloutSettings, settings_of
from prolepsis.control.rollout.units import unit_of
from prolepsis.control.statistics.arms import Arm, Histogram
from prolepsis.control.statistics.guardrail import Outcome
from prolepsis.control.statistics.judge import Evidence, StageEvidence
from prolepsis.control.statistics.window import WindowEvidence
from prolepsis.control.verdict.verdict import RolloutStanding
from prolepsis.core.config import DRAFT_HEAD, HEAD_PROPOSERS
from prolepsis.core.ended import AssignedArm, Assignment, run_name
from prolepsis.core.facts import position
from prolepsis.core.stats import Mode

Histories = Mapping[str, Histogram]  # values of plain requests since the stage began, by metric
_DIGEST_LENGTH = 8
_NO_HISTORY = Histogram()


def arm_of(key: str, rollout_id: str, canary: float, holdout: float = 0.05) -> AssignedArm:
    """Return the arm of all requests with `key`, given the shares of the canary and of the holdout.

    The canary grows from below and the holdout stands at the top, so a key that is on the canary at 1 % stays on it at
    5 %, and the holdout never gets it. Another rollout draws independently. Unassigned requests are compared as
    control. Judgements count by key (`control.rollout.units`).
    """
    assert min(canary, holdout) >= 0.0, "shares are in [0, 1]"
    assert canary + holdout <= 1.0 + 1e-9, "shares are together at most 1"
    drawn = position(rollout_id, key) / 100.0
    if drawn < canary:
        return "canary"
    return "holdout" if drawn >= 1.0 - holdout else "unassigned"


@dataclass(frozen=True, slots=True)
class RolloutTarget:
    rollout_id: str
    """RULE@DIGEST, of its conditions, its terms and the model: an edited rule is another rollout, and a rule that is
    put back continues its own."""
    rule: str
    settings: RolloutSettings
    starts_itself: bool
    unit: str = "request"  # the unit that is assigned and counted once
    against: Mapping[str, object] | None = None  # terms of the control; None: it is plain
    heads: frozenset[str] = frozenset()  # proposers with a draft head that canary or control may use
    named_heads: frozenset[str] = frozenset()  # those of them that the terms of an arm name


def targets_of(policy: Policy, model: str, in_force: Mapping[str, Terms] | None = None) -> Mapping[str, RolloutTarget]:
    """Return the rules of a policy that are rolled out, by name; `model` is the one served.

    `in_force`: terms of rules that something was learnt for. A rule's own rollout stays the same under them.
    """
    conditions: dict[str, object] = {rule.name: plain_match(rule.match) for rule in policy.rules}
    targets = {}
    for name, own in policy.named_terms():
        terms = (in_force or {}).get(name, own)
        if terms.rollout is not None:
            named = terms if isinstance(terms.rollout, TrialTerms) else own
            content = json.dumps([model, conditions.get(name), _drafting(named)], sort_keys=True)
            targets[name] = RolloutTarget(
                rollout_id=f"{name}@{sha256(content.encode()).hexdigest()[:_DIGEST_LENGTH]}",
                rule=name,
                settings=settings_of(terms),
                starts_itself=terms.rollout.gate == "automatic",
                unit=terms.rollout.unit,
                against=terms.rollout.against.changes if terms.rollout.against is not None else None,
                heads=_heads(terms, DRAFT_HEAD),
                named_heads=_heads(terms),
            )
    return targets


def _heads(terms: Terms, *unless_named: str) -> frozenset[str]:
    """Return the draft heads of both arms; `unless_named`: the heads of an arm that names no proposers."""
    used = [terms.proposers]
    if terms.rollout is not None and terms.rollout.against is not None:
        used.append(control_terms(terms).proposers)
    named = {name for proposers in used for name in (proposers or unless_named)}
    return frozenset(named.intersection(HEAD_PROPOSERS))


def _drafting(terms: Terms) -> dict[str, object]:
    """Return the terms that change how requests are served: without `audit`, `learning` and `on_harm`."""
    plain = plain_terms(terms.model_copy(update={"audit": None, "learning": None}))
    if terms.rollout is None:
        return plain
    left_out = {"on_harm"}
    left_out |= {"assign_by"} if terms.rollout.assign_by == "request" else set()
    left_out |= {"against"} if terms.rollout.against is None else set()
    return {**plain, "rollout": terms.rollout.model_dump(mode="json", exclude=left_out)}


class LiveRollout:
    """Holds state and evidence as frozen values: a thread that reads them sees one moment. For one event loop."""

    def __init__(self, target: RolloutTarget, state: RolloutState) -> None:
        self.target = target
        self.others: tuple[StageEvidence | WindowEvidence, ...] = ()
        """Evidence of other replicas, and of earlier starts of this one."""
        self.weights = ""  # versions of the draft heads in use, among the heads that the rule may use
        self.outcome: Outcome | None = None  # of the guardrails of the present stage, at its last step
        self.is_harmed = False  # a guardrail's harm took it back, while this server ran
        self._begin(state)
        self.take(state)

    @property
    def settings(self) -> RolloutSettings:
        return self.target.settings

    @property
    def standing(self) -> RolloutStanding:
        return RolloutStanding(
            self.state.rollout_id, self.state.phase == "rolled_back", self.is_harmed, self.outcome or ""
        )

    def take(self, state: RolloutState) -> None:
        """Continue from `state`; a new stage begins without evidence."""
        if not self.evidence.belongs_to(state.rollout_id, state.run, evidence_stage(state, self.settings)):
            self._begin(state)
        self.state = state
        self._guardrails = guardrails_of(state, self.settings)

    def draft_with(self, weights: str) -> bool:
        """Begin the stage's evidence again if draft heads were exchanged; return whether they were."""
        if weights == self.weights:
            return False
        self.weights = weights
        self._begin(self.state)
        return True

    def _begin(self, state: RolloutState) -> None:
        stage = evidence_stage(state, self.settings)
        self.evidence: StageEvidence | WindowEvidence = (
            WindowEvidence(state.rollout_id, stage, state.run, spans=(), weights=self.weights)
            if state.phase == "on"
            else StageEvidence(state.rollout_id, stage, run=state.run, weights=self.weights)
        )
        self._histories: dict[str, Histogram] = {}
        self._num_left_out = 0

    @property
    def left_out(self) -> list[str]:
        """In words, how many requests of the stage count for no arm here."""
        if not self._num_left_out:
            return []
        why = "their caller, a flag or what their traffic class is eligible for kept them from what they were assigned"
        return [f"{self._num_left_out} requests of this stage do not count: {why}"]

    def leave_out(self, assignment: Assignment) -> None:
        """Note a request that was served in another way than it was assigned."""
        if self.evidence.belongs_to(assignment.rollout_id, assignment.run, assignment.stage):
            self._num_left_out += 1

    def assign(self, key: str, sticky: str | None = None) -> Assignment:
        """Return the assignment now: of a request with `key` alone, or of all requests that share the key `sticky`."""
        state, settings = self.state, self.settings
        shadow = state.phase in ACTIVE and settings.stages[state.stage].kind == "shadow"
        verifying = canary_share(state, settings)
        share = settings.stages[state.stage].share if shadow else verifying
        arm = arm_of(sticky or key, state.rollout_id, share, settings.holdout)
        unit = unit_of(sticky, self.weights) if sticky else ""
        is_plain = self.target.against is None
        of_control: Mode = "off" if is_plain else "on"
        of_canary: Mode = "shadow" if shadow else "on"
        return Assignment(
            state.rollout_id,
            state.run,
            evidence_stage(state, settings),
            arm,
            of_canary if arm == "canary" else of_control,
            verifying,
            unit,
            self.weights,
            is_plain,
            state.phase == "rolled_back",
        )

    def observe(
        self, assignment: Assignment, values: Mapping[str, float], *, now: float = 0.0, late: bool = False
    ) -> None:
        """Count a request that finished at `now` (Unix time in seconds), given its values by metric; below 0.1 ms.

        `late`: the request is counted already, and these values of it were measured afterwards.
        """
        if assignment.weights != self.weights:
            return
        if assignment.arm != "canary":
            for name, value in values.items():
                self._histories[name] = self._histories.get(name, _NO_HISTORY).observe(value)
        arm, evidence = self._judged_arm(assignment), self.evidence
        if arm is None:
            return
        if isinstance(evidence, WindowEvidence):
            self.evidence = evidence.observe(self._guardrails, arm, values, now=now, late=late)
        else:
            observe = evidence.observe_more if late else evidence.observe
            self.evidence = observe(self._guardrails, arm, values)

    def _judged_arm(self, assignment: Assignment) -> Arm | None:
        """Return the arm for which a request is evidence; None if the stage is over or has no such arm."""
        run, stage = assignment.run, assignment.stage
        if not self.evidence.belongs_to(assignment.rollout_id, run, stage) or self.state.phase not in JUDGED:
            return None
        if assignment.arm == "canary":
            return "canary"
        stages = self.settings.stages
        return None if stage < len(stages) and stages[stage].kind == "shadow" else "control"

    def all_evidence(self, now: float) -> Evidence:
        """Return the evidence of all replicas for the stage, as it stands at `now` (Unix time in seconds)."""
        ours = self.evidence
        others = [
            evidence
            for evidence in self.others
            if evidence.belongs_to(ours.rollout_id, ours.run, ours.stage) and evidence.weights == ours.weights
        ]
        if isinstance(ours, WindowEvidence):
            return sum((evidence for evidence in others if isinstance(evidence, WindowEvidence)), ours).at(now)
        return sum((evidence for evidence in others if isinstance(evidence, StageEvidence)), ours)

    @property
    def histories(self) -> Histories:
        return dict(self._histories)


def step_with_references(
    state: RolloutState, evidence: Evidence, histories: Histories, now: float, settings: RolloutSettings
) -> Transition:
    """Return the state at `now`, with the references that its stage needs and plain requests can give by now."""
    after, events = step(state, evidence, now, settings)
    return referenced(state, after, histories, settings), events


def referenced(
    before: RolloutState, after: RolloutState, histories: Histories, settings: RolloutSettings
) -> RolloutState:
    """Return the state `after` with references for its stage, as one change from `before`.

    A new stage gets references for all guardrails with a history; later only guardrails that cannot be judged without
    get one, so that nothing changes under the requests that were counted already.
    """
    if after.phase not in JUDGED:
        return after
    places = [(state.run, evidence_stage(state, settings)) for state in (before, after)]
    is_new = places[0] != places[1]
    references: dict[str, float] = {}
    for guardrail in guardrails_of(after, settings):
        history = histories.get(guardrail.metric, _NO_HISTORY)
        is_enough = history.count >= guardrail.measure.reference_requests
        reference = guardrail.measure.reference_from(history) if is_enough else None
        if reference is not None and (is_new or not guardrail.measure.ready):
            references[guardrail.name] = reference
    if not references:
        return after
    return replace(after, version=before.version + 1, references={**after.references, **references})


def stopped_runs(before: RolloutState, after: RolloutState) -> Sequence[str]:
    """Return the runs that the engine has to stop, because the change took back the mode of requests in flight."""
    taken_back = before.run > 0 and (after.phase == "rolled_back" or after.run != before.run)
    return (run_name(before.rollout_id, before.run),) if taken_back else ()
