"""A run of learning as a state machine: its events, the pure function that steps it, and what it puts in place.

Each server makes itself alike from what is stored (`in_place`), so nothing is sent, and a server that was late, or was
killed between two acts, follows with its next tick. Heads that are retired stay so, whatever a run says of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prolepsis.control.rollout.machine import Phase as RolloutPhase
from prolepsis.core.config import DAY_S
from prolepsis.core.learning import HeadLineage, LearningRun, Outcome, Phase, Trigger

SETTLE_S = DAY_S  # so long a candidate drafts for all but the holdout before it is promoted
_DRAFTED, _LEAST = 8, 0.02
TRIED: tuple[Phase, ...] = ("trial", "settling")
"""Phases in which a candidate drafts for users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A run is to be made; the fields are those of `LearningRun`."""

    rule: str
    trigger: Trigger
    why: str = ""
    model: str = ""
    target: str = ""
    parent: str = ""
    terms: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taken:
    """A process trains, and holds the run until a time."""

    holder: str
    until: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    head: str  # NAME@VERSION of the candidate; empty: it did not pass
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RolloutSeen:
    """The trial's rollout is in a phase."""

    phase: RolloutPhase
    reason: str = ""
    harmed: bool = True  # where it was rolled back: by harm, not for want of a judgement


@dataclass(frozen=True, slots=True)
class Retired:
    """The run's head may not draft any more."""

    why: str
    forgotten: bool = False  # a tenant was, that it had learnt from


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: Outcome
    reason: str = ""


LearningEvent = Due | Taken | Evaluated | RolloutSeen | Retired | Ended


@dataclass(frozen=True, slots=True)
class Retire:
    head: str
    why: str


@dataclass(frozen=True, slots=True)
class Promote:
    head: str


LearningAct = Retire | Promote
"""Carried out before the run is stored: each may be repeated, and none harms if another server is first."""
Transition = tuple[LearningRun, tuple[LearningAct, ...]]


def step(run: LearningRun, event: LearningEvent, now: float) -> Transition:
    """Return the run after an event at `now` (Unix time in seconds), and the acts that go before it.

    The same run and no act where the event has no place in its phase.
    """
    after, acts = run, tuple[LearningAct, ...]()
    match run.phase, event:
        case "ended", Due() as due:
            after = _begun(run, due, now)
        case (("due" | "training"), Taken(holder, until)) if holder == run.holder or run.leased_until <= now:
            since = now if run.phase == "due" else run.since
            after = replace(run, phase="training", since=since, holder=holder, leased_until=until)
        case "training", Evaluated("", reason):
            after = _ended(run, "rejected", reason, now)
        case "training", Evaluated(head, reason):
            after = replace(_released(run), phase="trial", head=head, reason=reason, since=now)
        case "trial", RolloutSeen("on"):
            after = replace(run, phase="settling", since=now)
        case "settling", RolloutSeen("on") if now - run.since >= SETTLE_S:
            after, acts = _ended(run, "promoted", run.reason, now), (Promote(run.head),)
        case "settling", RolloutSeen("running" | "gate" | "held"):
            after = replace(run, phase="trial", since=now)
        case (("trial" | "settling"), RolloutSeen("rolled_back", reason, harmed)):
            outcome: Outcome = "rolled_back" if harmed else "rejected"
            after, acts = _ended(run, outcome, reason, now), (Retire(run.head, reason or outcome),)
        case (("trial" | "settling"), Retired(why, forgotten)):
            after = _ended(run, "forgotten" if forgotten else "rolled_back", why, now)
        case "ended", Retired(why, forgotten) if run.outcome == "promoted":
            after = _ended(run, "forgotten" if forgotten else "rolled_back", why, now)
        case (("due" | "training" | "trial" | "settling"), Ended(outcome, reason)):
            after, acts = _ended(run, outcome, reason, now), (Retire(run.head, reason or outcome),) if run.head else ()
    return after, acts


def _begun(run: LearningRun, due: Due, now: float) -> LearningRun:
    return LearningRun(
        version=run.version,
        run_id=f"{due.rule}-{now:.0f}",
        phase="due",
        since=now,
        rule=due.rule,
        trigger=due.trigger,
        why=due.why,
        model=due.model,
        target=due.target,
        parent=due.parent,
        terms=due.terms,
    )


def _released(run: LearningRun) -> LearningRun:
    return replace(run, holder="", leased_until=0.0, paused_until=0.0)


def _ended(run: LearningRun, outcome: Outcome, reason: str, now: float) -> LearningRun:
    return replace(_released(run), phase="ended", outcome=outcome, reason=reason, since=now)


@dataclass(frozen=True, slots=True)
class InPlace:
    """The learnt heads that draft, as NAME@VERSION; empty: none."""

    candidate: str = ""  # in the slot of candidates, where the run's rule compares it with its champion
    champion: str = ""  # in the slot of its own, where the rule that it was promoted for names it


def in_place(run: LearningRun, heads: Mapping[str, HeadLineage], rules: Collection[str]) -> InPlace:
    """Return what a server has in place, given the heads that fit its target and the rules that learn."""
    lineage = heads.get(run.head)
    if run.phase not in TRIED or run.rule not in rules or lineage is None or lineage.retired:
        return InPlace(champion=champion_of(heads, rules))
    others = {label: other for label, other in heads.items() if label != run.head}  # its promotion may be half done
    return InPlace(run.head, champion_of(others, rules))


def champion_of(heads: Mapping[str, HeadLineage], rules: Collection[str], *, to_learn_from: bool = False) -> str:
    """Return the head that was promoted last for one of the rules, empty without one.

    `to_learn_from`: none of which a tenant is forgotten, even where it still may draft.
    """
    known = [
        (lineage.promoted_at, label)
        for label, lineage in heads.items()
        if lineage.rule in rules and lineage.promoted_at and not lineage.retired
        if not (to_learn_from and lineage.touched)
    ]
    return max(known, default=(0.0, ""))[1]


def shadow_limit(lineage: HeadLineage) -> float:
    """Return the acceptance rate in (0, 1) that a candidate has to be above in shadow.

    Four fifths of that of drafts of eight tokens of which each is right as often as the first was when it was
    evaluated: other traffic leaves that much, and a damaged export next to nothing.
    """
    first = lineage.evaluation.get("first")
    right = float(first[1]) if isinstance(first, Sequence) and len(first) == 2 else 0.0
    return max(_LEAST, 0.8 * sum(right**place for place in range(1, _DRAFTED + 1)) / _DRAFTED)
