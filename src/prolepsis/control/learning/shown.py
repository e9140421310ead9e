"""What people see of learning: examples by rule, the run as its chain, and the heads that came of it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from prolepsis.control.learning.machine import TRIED, champion_of
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.rollout.runtime import RolloutView
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleTable, ExampleTotals
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.core.learning import HeadLineage, LearningRun, Phase
from prolepsis.core.terminal.resource import REASON, Act, Resource

_PATH = "/admin/learning"
_STEPS: Mapping[Phase, str] = {
    "due": "waiting for a process",
    "training": "training and evaluation",
    "trial": "trial",
    "settling": "settling",
}
_NOT_TRIED = "its rollout shows how far it is, once the head is in its slot and the rule's own rollout is on"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLearning:
    """What is kept of a rule's requests."""

    rule: str
    serves: str  # whom its heads may draft for, in words; empty: the policy in use has no such block
    champion: str  # NAME@VERSION of the learnt head that its requests draft with; empty: none was promoted
    num_examples: int
    num_tokens: int
    num_bytes: int
    num_sealed: int  # examples that nobody reads without the audit key
    first_at: float | None  # when the oldest began


@dataclass(frozen=True, slots=True)
class ChainStep:
    step: str
    state: str  # done, now, to come or ended
    shows: str = ""  # what is known of it, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntHead(HeadLineage):
    head: str
    state: str  # in words


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningReply:
    rules: list[RuleLearning]
    runs: list[LearningRun]  # the one that is under way or was last; empty before the first
    chain: list[ChainStep]  # its steps
    heads: list[LearntHead]  # the newest first
    warnings: list[str] = field(default_factory=list)


LEARNING = Resource(
    title="Learning",
    path=_PATH,
    part="rules",
    help="Show what is kept to learn from, the run that is under way, and the heads that were learnt.",
    columns={
        "rules": (
            *("rule > serves", "champion", "examples=num_examples > tokens=num_tokens"),
            "kept=num_bytes:bytes > sealed=num_sealed > first_at",
        )
    },
    hint="Requests are kept as token ids where the rule's block `learning` names their tenant and they agree"
    " themselves. Heads that learnt from them draft for users once they beat the one before.",
    empty="No rule of the policy in use has a block `learning`, and nothing is kept.",
    acts={
        "learn": Act(
            method="PUT",
            path=_PATH,
            parameters=(REASON,),
            done="A head for {rule} will be trained.",
            button="Train",
            row={"rule": "{rule}", "act": "run"},
        )
    },
)
RUNS = Resource(
    title="Run",
    path=_PATH,
    part="runs",
    help=LEARNING.help,
    columns={
        "runs": (
            *("rule > trigger > why", "phase > outcome > reason", "head > parent"),
            *("progress=progress:share > processor_s", "since"),
        )
    },
    empty="No run has begun yet.",
    acts={
        "stop-learning": Act(
            method="PUT",
            path=_PATH,
            parameters=(REASON,),
            done="The run for {rule} has ended.",
            button="Stop",
            row={"rule": "{rule}", "act": "stop"},
            unless="outcome",
        )
    },
)
CHAIN = Resource(
    title="Steps of the run",
    path=_PATH,
    part="chain",
    help=LEARNING.help,
    columns={"chain": ("step", "state", "shows")},
)
LEARNT = Resource(
    title="Learnt heads",
    path=_PATH,
    part="heads",
    help=LEARNING.help,
    columns={"heads": ("head > rule", "parent", "data sets=manifests", "state", "made_at")},
    empty="No head was learnt yet.",
    acts={
        "retire": Act(
            method="PUT",
            path=_PATH,
            parameters=(REASON,),
            done="{head} may not draft any more.",
            button="Retire",
            row={"head": "{head}", "rule": "{rule}", "act": "retire"},
            unless="retired",
        )
    },
)
RESOURCES = (LEARNING, RUNS, CHAIN, LEARNT)
COLUMNS = {path: columns for resource in RESOURCES for path, columns in resource.columns.items()}
"""Of the whole reply."""


def shown(
    database: Database, blocks: Mapping[str, LearningTerms], *, trial: RolloutView | None = None
) -> LearningReply:
    """Return all of it; waits for the database, and raises `StoreUnavailable`.

    `blocks`: terms of learning by rule, of the policy in use; `trial`: the rollout of the run's candidate.
    """
    run, heads = RunTable(database).read(), LineageTable(database).heads()
    totals = defaultdict[str, list[ExampleTotals]](list)
    for total in ExampleTable(database).totals():
        totals[total.rule].append(total)
    newest = sorted(heads.items(), key=lambda item: -item[1].made_at)
    return LearningReply(
        rules=[_rule(rule, totals[rule], blocks.get(rule), heads) for rule in sorted({*blocks, *totals})],
        runs=[run] if run.run_id else [],
        chain=_chain(run, heads.get(run.head), trial) if run.run_id else [],
        heads=[_head(label, lineage, run, heads) for label, lineage in newest],
        warnings=[
            f"{rule} does not learn by the policy in use, so its examples will be deleted"
            for rule in sorted({*totals} - {*blocks})
        ],
    )


def _rule(
    rule: str, totals: Sequence[ExampleTotals], terms: LearningTerms | None, heads: Mapping[str, HeadLineage]
) -> RuleLearning:
    agreed = {total.tenant for total in totals} & {*(terms.tenants if terms else ())}
    serves = ""
    if terms is not None:
        tenants = ", ".join(tenant or "development" for tenant in terms.tenants)
        serves = tenants if terms.serves == "tenant" else f"all, {len(agreed)} of {terms.min_tenants} tenants"
    return RuleLearning(
        rule=rule,
        serves=serves,
        champion=champion_of(heads, [rule]),
        num_examples=sum(total.number for total in totals),
        num_tokens=sum(total.num_tokens for total in totals),
        num_bytes=sum(total.num_bytes for total in totals),
        num_sealed=sum(total.num_sealed for total in totals),
        first_at=min((total.first_at for total in totals), default=None),
    )


def _chain(run: LearningRun, lineage: HeadLineage | None, trial: RolloutView | None) -> list[ChainStep]:
    """Return the steps of a run; a trial is the stages of its rollout, where that is known."""
    phases = [*_STEPS]
    if run.phase == "ended":  # in which phase is not kept; a head was evaluated
        reached = len(phases) if run.outcome == "promoted" else phases.index("trial" if run.head else "training")
    else:
        reached = phases.index(run.phase)
    shows = {"training": _evaluated(lineage), "trial": _NOT_TRIED if run.phase == "trial" else ""}
    steps = []
    for number, phase in enumerate(phases):
        state = "done" if number < reached else run.outcome or "now" if number == reached else "to come"
        if phase == run.phase == "trial" and trial is not None:
            steps += _stages(trial)
        else:
            steps.append(ChainStep(_STEPS[phase], state, shows.get(phase, "")))
    return steps


def _stages(trial: RolloutView) -> list[ChainStep]:
    seen = f"{trial.num_canary:,} requests with the candidate, {trial.num_control:,} without"
    present = trial.stage_number
    return [
        ChainStep(
            f"trial: {name}",
            "done" if number < present else "now" if number == present else "to come",
            "; ".join((seen, *trial.missing)) if number == present else "",
        )
        for number, name in enumerate(trial.stages)
    ]


def _evaluated(lineage: HeadLineage | None) -> str:
    own = lineage.evaluation.get("own") if lineage else None
    if not isinstance(own, Mapping):
        return ""
    return f"{own['estimate'] - 1:+.1%} tokens a pass on later examples, at least {own['lower'] - 1:+.1%}"


def _head(label: str, lineage: HeadLineage, run: LearningRun, heads: Mapping[str, HeadLineage]) -> LearntHead:
    if lineage.retired:
        state = f"retired: {lineage.retired}"
    elif label == champion_of(heads, [lineage.rule]):
        state = "champion"
    elif label == run.head and run.phase in TRIED:
        state = "candidate"
    else:
        state = "promoted earlier" if lineage.promoted_at else "made"
    if lineage.touched and not lineage.retired:
        state += f" until the next promotion: {lineage.touched}"
    return LearntHead(head=label, state=state, **{each.name: getattr(lineage, each.name) for each in fields(lineage)})
