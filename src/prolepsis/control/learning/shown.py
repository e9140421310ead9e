"""What people see of learning: examples by rule, the run as its chain, and the heads that came of it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from prolepsis.control.learning.machine import TRIED, champion_of
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.rollout.runtime import RolloutView
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleTable, ExampleTotals
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.core.learning import HeadLineage, LearningRun
from prolepsis.core.terminal.resource import REASON, Act, Resource

_PATH = "/admin/learning"
_PHASES = {
    "due": "it waits for a process",
    "training": "the head is trained, then evaluated",
    "trial": "in shadow, then for a part of the requests; it waits for the rule's own rollout and a free slot",
    "settling": "a day with all requests but the holdout, then the head is promoted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLearning:
    """What is kept of a rule's requests."""

    rule: str
    serves: str
    """Whom its heads may draft for, in words. nobody: it does not learn, and upkeep deletes its examples. not known:
    the policy is not in the store, and no setting names its file here."""
    num_examples: int
    num_tokens: int
    num_bytes: int
    num_sealed: int  # examples that nobody reads without the audit key


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntHead(HeadLineage):
    head: str  # NAME@VERSION
    state: str  # candidate or champion; empty: it does not draft


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningReply:
    rules: list[RuleLearning]
    runs: list[LearningRun]  # the one that is under way or was last, its trial told in `reason`; empty before the first
    heads: list[LearntHead]  # the newest first


def _act(act: str, field: str, button: str, done: str, *, unless: str = "") -> Act:
    """`field`: of the row that the act is about."""
    row = {field: f"{{{field}}}", "act": act}
    return Act(method="PUT", path=_PATH, parameters=(REASON,), done=done, button=button, row=row, unless=unless)


LEARNING = Resource(
    title="Learning",
    path=_PATH,
    part="rules",
    help="Show what is kept to learn from, the run that is under way, and the heads that were learnt.",
    columns={
        "rules": (
            "rule > serves",
            "examples=num_examples > tokens=num_tokens",
            "kept=num_bytes:bytes > sealed=num_sealed",
        )
    },
    hint="Requests are kept as token ids where the rule's block of learning names their tenant and they agree"
    " themselves. Heads that learnt from them draft for users once they beat the one before.",
    empty="No rule of the policy in use has a block of learning, and nothing is kept.",
    acts={"learn": _act("run", "rule", "Train", "A head for {rule} will be trained.")},
)
RUNS = Resource(
    title="Run",
    path=_PATH,
    part="runs",
    help=LEARNING.help,
    columns={
        "runs": (
            *("rule > trigger > why", "phase > outcome > reason", "head > parent"),
            *("progress=progress:share > processor_s > report", "since"),
        )
    },
    empty="No run has begun yet.",
    words={"phase": _PHASES},
    acts={"stop-learning": _act("stop", "rule", "Stop", "The run for {rule} has ended.", unless="outcome")},
)
LEARNT = Resource(
    title="Learnt heads",
    path=_PATH,
    part="heads",
    help=LEARNING.help,
    columns={"heads": ("head > rule", "parent", "data sets=manifests", "state > retired > touched", "made_at")},
    empty="No head was learnt yet.",
    acts={"retire": _act("retire", "head", "Retire", "{head} may not draft any more.", unless="retired")},
)
RESOURCES = (LEARNING, RUNS, LEARNT)
COLUMNS = {path: columns for resource in RESOURCES for path, columns in resource.columns.items()}
"""Of the whole reply."""


def shown(
    database: Database, blocks: Mapping[str, LearningTerms] | None, *, trial: RolloutView | None = None
) -> LearningReply:
    """Return all of it; waits for the database, and raises `StoreUnavailable`.

    `blocks`: terms of learning by rule, of the policy in use, None if that is not known; `trial`: the rollout of the
    run's candidate.
    """
    run, heads = RunTable(database).read(), LineageTable(database).heads()
    totals = defaultdict[str, list[ExampleTotals]](list)
    for total in ExampleTable(database).totals():
        totals[total.rule].append(total)
    if trial is not None:
        seen = f"{trial.stage}: {trial.num_canary:,} requests with the candidate, {trial.num_control:,} without"
        run = replace(run, reason="; ".join(filter(None, (run.reason, seen, *trial.missing))))
    states = {run.head: "candidate"} if run.phase in TRIED else {}
    states |= {champion_of(heads, [lineage.rule]): "champion" for lineage in heads.values()}
    names = [each.name for each in fields(HeadLineage)]
    learnt = [
        LearntHead(head=label, state=states.get(label, ""), **{name: getattr(lineage, name) for name in names})
        for label, lineage in heads.items()
    ]
    return LearningReply(
        rules=[_rule(rule, totals[rule], _serves(rule, blocks)) for rule in sorted({*(blocks or ()), *totals})],
        runs=[run] if run.run_id else [],
        heads=sorted(learnt, key=lambda head: -head.made_at),
    )


def _serves(rule: str, blocks: Mapping[str, LearningTerms] | None) -> str:
    if blocks is None:
        return "not known"
    terms = blocks.get(rule)
    tenants = ", ".join(tenant or "development" for tenant in (terms.tenants if terms else ())) or "nobody"
    return f"all, by {tenants}" if terms and terms.serves == "all" else tenants


def _rule(rule: str, totals: Sequence[ExampleTotals], serves: str) -> RuleLearning:
    return RuleLearning(
        rule=rule,
        serves=serves,
        num_examples=sum(total.number for total in totals),
        num_tokens=sum(total.num_tokens for total in totals),
        num_bytes=sum(total.num_bytes for total in totals),
        num_sealed=sum(total.num_sealed for total in totals),
    )
