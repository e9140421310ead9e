"""A run of learning as a state machine: its events, the pure function that steps it, and what it puts in place.

Each server makes itself alike from what is stored (`in_place`), so nothing is sent, and a server that was late, or was
killed between act and run, follows with its next tick. Heads that are retired stay so, whatever a run says of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from prolepsis.control.rollout.machine import Phase as RolloutPhase
from prolepsis.core.config import DAY_S
from prolepsis.core.learning import HeadLineage, LearningRun, Outcome, Phase

SETTLE_S = DAY_S  # so long a candidate drafts for all but the holdout before it is promoted
_DRAFTED, _LEAST = 8, 0.02
TRIED: tuple[Phase, ...] = ("trial", "settling")
"""Phases in which a candidate drafts for users."""


@dataclass(frozen=True, slots=True)
class Taken:
    holder: str  # the process that trains
    until: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    head: str  # NAME@VERSION of the candidate; empty: it did not pass
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RolloutSeen:
    phase: RolloutPhase  # of the trial


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: Outcome
    reason: str = ""


LearningEvent = LearningRun | Taken | Evaluated | RolloutSeen | Ended  # the first: a run that is due


def step(run: LearningRun, event: LearningEvent, now: float) -> tuple[LearningRun, bool]:
    """Return the run after an event at `now` (Unix time in seconds), and whether it decides about its head.

    The head is then promoted, or else retired, before the run is stored: both may be repeated, and do no harm if
    another server is first. The run is the same where the event has no place in its phase.
    """
    after = run
    match run.phase, event:
        case "ended", LearningRun() as due:
            after = replace(due, version=run.version, run_id=f"{due.rule}-{now:.0f}", phase="due", since=now)
        case (("due" | "training"), Taken(holder, until)) if holder == run.holder or run.leased_until <= now:
            since = now if run.phase == "due" else run.since
            after = replace(run, phase="training", since=since, holder=holder, leased_until=until)
        case "training", Evaluated("", reason):
            after = _released(run, "ended", "rejected", reason, now)
        case "training", Evaluated(head, reason):
            after = replace(_released(run, "trial", None, reason, now), head=head)
        case "trial", RolloutSeen("on"):
            after = replace(run, phase="settling", since=now)
        case "settling", RolloutSeen("on") if now - run.since >= SETTLE_S:
            after = _released(run, "ended", "promoted", run.reason, now)
        case "settling", RolloutSeen("running" | "gate" | "held"):
            after = replace(run, phase="trial", since=now)
        case (("due" | "training" | "trial" | "settling"), Ended(outcome, reason)):
            after = _released(run, "ended", outcome, reason, now)
        case "ended", Ended(("rolled_back" | "forgotten") as outcome, reason) if run.outcome == "promoted":
            after = _released(run, "ended", outcome, reason, now)
    return after, after != run and after.phase == "ended" and bool(after.head)


def _released(run: LearningRun, phase: Phase, outcome: Outcome | None, reason: str, now: float) -> LearningRun:
    """Return a run that no process holds any more."""
    free = replace(run, holder="", leased_until=0.0, paused_until=0.0)
    return replace(free, phase=phase, outcome=outcome, reason=reason, since=now)


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
