"""The decision on how a request speculates: by its caller, the terms of the policy's rule, a rollout and a flag."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from prolepsis.control.health.eligibility import UNLIMITED, DraftLimits
from prolepsis.control.policy.model import DEFAULT_RULE, Emit, PartTerms, TargetTerms, Terms
from prolepsis.core.ended import Assignment
from prolepsis.core.facts import FlagDecision, position
from prolepsis.core.reasons import LimitReason, OffReason
from prolepsis.core.requests import LatencyTarget, SpecMode, SpeculationChoice
from prolepsis.core.stats import Mode

Source = Literal["policy", "caller", "shadow_percentage", "eligibility", "start"]


@dataclass(frozen=True, slots=True)
class SpeculationRequest:
    """The caller's request about speculation, which the caller's roles allow."""

    mode: SpecMode = "auto"  # auto: as the policy says; always: verify every draft, whether or not it pays
    max_depth: int | None = None
    proposer: str | None = None
    emit: Emit | None = None
    metrics: bool = False  # the reply shows figures of the request
    learn: bool = False  # draft heads may learn from it

    @property
    def leaves_drafts_open(self) -> bool:
        """Whether policy and engine alone decide about drafts."""
        return self.mode == "auto" and self.max_depth is None and self.proposer is None


UNSTATED = SpeculationRequest()


@dataclass(frozen=True, slots=True)
class Conflict:
    """A request that contradicts the policy: it is refused by name, never ignored."""

    param: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How one request speculates, and what decided it."""

    requested: SpeculationRequest
    choice: SpeculationChoice  # for the engine: mode and reason, ceiling, proposers and the run of a rollout
    emit: Emit = "block"
    sources: Mapping[str, Source] = field(default_factory=dict)
    """The source of each field; empty without a policy."""
    rule: str | None = None
    """The policy's rule that matched; None: there is no policy, and callers decide alone."""
    traffic_class: str = ""  # of the request, with the rule that matched
    policy_version: str | None = None
    terms: Terms | None = None
    assignment: Assignment | None = None  # if the rule is rolled out
    limits: DraftLimits = UNLIMITED  # limits from earlier drafts of the traffic class
    limited_by: tuple[LimitReason, ...] = ()  # those limits that took effect
    rule_flags: tuple[FlagDecision, ...] = ()  # decisions of the flags that rules name
    flag: FlagDecision | None = None  # decision of the flag for all speculation; None: no flags are configured
    is_recorded: bool = True  # the policy lets records of its tenant's requests be kept

    @property
    def flags(self) -> tuple[FlagDecision, ...]:
        return self.rule_flags if self.flag is None else (*self.rule_flags, self.flag)

    @property
    def is_evidence(self) -> bool:
        """Whether the request counts for its rule's rollout: neither caller nor flag narrows what it was assigned.

        Nor does eligibility, in any arm: those of a traffic class count together, or not at all.
        """
        is_as_assigned = self.requested.leaves_drafts_open and self.choice.off_reason not in _NARROWED
        return is_as_assigned and self.limits.verifies

    def target(self, stated: LatencyTarget | None) -> LatencyTarget | None:
        """Return the target that a request states, and what it leaves out from the rule; None if neither has any."""
        stated, of_rule = stated or LatencyTarget(), (self.terms and self.terms.target) or TargetTerms()
        target = LatencyTarget(
            stated.ms_per_token or of_rule.ms_per_token, stated.first_token_ms or of_rule.first_token_ms
        )
        return None if target == LatencyTarget() else target

    def under_flag(self, flag: FlagDecision) -> "Decision":
        """Apply the flag's decision, which may turn off what caller and policy left on."""
        return replace(self if flag.value else self.turned_off("flag_off"), flag=flag)

    def turned_off(self, reason: OffReason) -> "Decision":
        """Turn off what caller and policy left on."""
        if not self.choice.enabled:
            return self
        return replace(self, choice=replace(self.choice, mode="off", off_reason=reason, may_fall_back=False))


_NARROWED: tuple[OffReason, ...] = ("flag_off", "no_proposer")
ALONE = Terms(mode="on")  # terms of a server without a policy


def decide_alone(requested: SpeculationRequest, limits: DraftLimits = UNLIMITED) -> Decision:
    """Return the decision where there is no policy; `limits` are those of the terms `ALONE`."""
    decision = decide("", ALONE, requested, limits=limits)
    return replace(decision, rule=None, terms=None, sources={})


def conflict(rule: str, terms: Terms, requested: SpeculationRequest) -> Conflict | None:
    """Return the first contradiction between a request and the terms of `rule`, None if there is none."""
    if terms.pinned:
        modes = ("auto",) if terms.mode == "on" else ("auto", terms.mode)
        pinned = f"the policy's rule {rule!r} pins it to {terms.mode}"
        if requested.mode not in modes:
            return Conflict("speculation.mode", f"speculation.mode is {requested.mode!r}, but {pinned}")
        if requested.max_depth == 0 and terms.mode != "off":
            return Conflict("speculation.max_depth", f"speculation.max_depth is 0, which turns it off, but {pinned}")
        if requested.emit not in (None, terms.emit):
            pinned = f"the policy's rule {rule!r} pins it to {terms.emit!r}"
            return Conflict("speculation.emit", f"speculation.emit is {requested.emit!r}, but {pinned}")
    if requested.proposer is not None and terms.proposers is not None and requested.proposer not in terms.proposers:
        allowed = ", ".join(terms.proposers) or "none"
        message = f"speculation.proposer is {requested.proposer!r}; allowed by the policy's rule {rule!r}: {allowed}"
        return Conflict("speculation.proposer", message)
    return None


def decide(
    rule: str,
    terms: Terms,
    requested: SpeculationRequest,
    targeting_key: str | None = None,
    *,
    assignment: Assignment | None = None,
    limits: DraftLimits = UNLIMITED,
) -> Decision:
    """Return the decision on a request that has no `conflict` with the terms.

    Mode: any caller may ask for `off`, an operator for `always` and `shadow`; `auto` leaves it to the policy, or to the
    assignment of the rule's rollout. Proposers and ceiling: a caller narrows them and never widens them. Emit: the
    caller's if one is given. `targeting_key` draws the share that drafts in shadow; without one every request does.
    `limits` hold for all but requests that an operator asked to `always` draft.
    """
    given = (
        terms if assignment is None else terms.model_copy(update={"mode": assignment.mode, "shadow_percentage": 100.0})
    )
    mode, source = _mode(rule, given, requested, targeting_key, limits)
    ceiling, ceiling_source = _ceiling(terms, requested, limits if mode == "on" else UNLIMITED)
    off_reason = _OFF_REASONS.get(source, off_by_rule(rule))
    if source == "policy" and assignment is not None:
        off_reason = "rolled_back" if assignment.is_rolled_back else "not_drawn"
    by_rollout = source in ("policy", "eligibility") and mode != "off"
    is_canary = assignment is not None and assignment.arm == "canary"
    choice = SpeculationChoice(
        mode="auto" if mode == "on" else mode,
        off_reason=off_reason if mode == "off" else "requested_off",
        num_speculative_tokens=ceiling,
        proposers=terms.proposers if requested.proposer is None else (requested.proposer,),
        rollout_run=assignment.rollout_run if assignment is not None and is_canary and by_rollout else "",
        may_fall_back=ceiling_source == "start"
        if mode == "on"
        else source == "eligibility" or (assignment is not None and source == "policy"),
    )
    if terms.inside is not None and choice.enabled:
        of_call, of_text = terms.inside.call, terms.inside.text
        choice = replace(choice, inside=(_narrowed(choice, of_call, rule), _narrowed(choice, of_text, rule)))
    return Decision(
        requested=requested,
        choice=choice,
        emit=requested.emit or terms.emit,
        sources={
            "mode": source,
            "proposers": "policy" if requested.proposer is None else "caller",
            "num_speculative_tokens": ceiling_source,
            "emit": "policy" if requested.emit is None else "caller",
        },
        rule=rule,
        terms=terms,
        assignment=assignment,
        limits=limits,
        limited_by=limits.reasons if source == "eligibility" or (mode == "on" and ceiling_source == "start") else (),
    )


def _narrowed(choice: SpeculationChoice, terms: PartTerms, rule: str) -> SpeculationChoice:
    """Return what the terms of a part of the answer leave of a choice."""
    names = choice.proposers if terms.proposers is None else terms.proposers
    names = names and tuple(name for name in names if name in (choice.proposers or names))
    if terms.mode == "off" or names == ():
        return replace(choice, mode="off", off_reason=off_by_rule(rule))
    ceilings = [given for given in (choice.num_speculative_tokens, terms.num_speculative_tokens) if given is not None]
    return replace(choice, num_speculative_tokens=min(ceilings, default=None), proposers=names)


_OFF_REASONS: Mapping[Source, OffReason] = {
    "caller": "requested_off",
    "shadow_percentage": "not_drawn",
    "eligibility": "not_eligible",
}


def off_by_rule(rule: str) -> OffReason:
    """Return why a request is off where the terms of its rule say so."""
    return "no_rule" if rule == DEFAULT_RULE else "rule_off"


def _ceiling(terms: Terms, requested: SpeculationRequest, limits: DraftLimits) -> tuple[int | None, Source]:
    """Return the lowest of the ceilings that are given, None without any; of equal ones the policy's."""
    given: list[tuple[int | None, Source]] = [
        (terms.num_speculative_tokens, "policy"),
        (requested.max_depth, "caller"),
        (limits.num_speculative_tokens, "start"),
    ]
    return min((known for known in given if known[0] is not None), key=lambda known: known[0] or 0, default=given[0])


def _mode(
    rule: str, terms: Terms, requested: SpeculationRequest, targeting_key: str | None, limits: DraftLimits
) -> tuple[Mode | SpecMode, Source]:
    mode = terms.mode if requested.mode == "auto" else requested.mode
    if requested.max_depth == 0 and mode != "off":
        return "off", "caller"
    if requested.mode != "auto":
        return mode, "caller"
    is_eligible = terms.mode != "on" or limits.verifies
    if is_eligible and terms.mode != "shadow":
        return terms.mode, "policy"
    is_drawn = targeting_key is None or position(rule, targeting_key) < terms.shadow_percentage
    if not is_eligible:
        return "shadow" if is_drawn else "off", "eligibility"
    return ("shadow", "policy") if is_drawn else ("off", "shadow_percentage")
