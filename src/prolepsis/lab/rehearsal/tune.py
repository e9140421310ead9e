"""Searches the terms of a policy, and the engine's settings, for a goal: every trial is a rehearsal of the trace."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal

from prolepsis.control.policy.model import DEFAULT_RULE, GivenTerms, Policy, Terms
from prolepsis.control.policy.rollout_terms import GUARDRAILS
from prolepsis.core.config import SYNTHETIC
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.rehearsal.advice import FEWEST_REQUESTS, Advice, advice, error_of
from prolepsis.lab.rehearsal.check import EACH, FIRST, OUTPUT, WHOLE, figure_of
from prolepsis.lab.rehearsal.control import without_rollouts
from prolepsis.lab.rehearsal.rehearsal import RehearsedServer, rehearse
from prolepsis.lab.rehearsal.trace import Trace
from prolepsis.lab.virtual_engine.machine import Machine

TuningGoal = Literal["latency", "cost", "goodput"]
CEILINGS = (None, 1, 2, 4, 8, 16)
"""Drafted tokens a step that are tried; None: as many as the engine drafts."""
SETTINGS: Mapping[str, tuple[float, ...]] = {
    "max_requests": (0.25, 0.5, 2.0),
    "max_step_tokens": (0.5, 2.0, 4.0),
    "chunk_limit_ms": (0.5, 2.0),
}
"""Settings of the engine that are tried, in multiples of their values."""
_FIGURES: Mapping[TuningGoal, Sequence[str]] = {
    "latency": (figure_of(WHOLE, 0.5),),
    "cost": (OUTPUT,),
    "goodput": (figure_of(FIRST, 0.5), figure_of(EACH, 0.5)),
}
"""Figures of a check whose errors bound what is gained."""
_SETTINGS_STEP = "settings of the engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningTrial:
    """One rehearsal of the search."""

    changed: str  # what differs from the best before; empty: nothing, it is the beginning
    latency_s: float  # mean time of a request, end to end
    machine_s_per_million: float  # seconds that the engine steps, for a million tokens
    goodput: float  # requests a second that keep the goal
    num_refused: int
    not_measured: str | None  # as in `Rehearsal`
    policy: Policy = field(repr=False)
    machine: Machine = field(repr=False)

    def worth(self, goal: TuningGoal) -> float:
        """Return what the goal makes of it: more is better."""
        if goal == "goodput":
            return self.goodput
        return 1.0 / max(1e-9, self.latency_s if goal == "latency" else self.machine_s_per_million)


@dataclass(frozen=True, slots=True)
class Tuning:
    """All trials in order, the one that is best for the goal, and what is advised or not known of each step."""

    trials: Sequence[TuningTrial]
    best: TuningTrial
    goal: TuningGoal
    num_requests: Mapping[str, int]
    """By step: a rule, the default, or the settings."""
    advice: Mapping[str, Advice]  # the same; none for the default where it was not asked for

    @property
    def promise(self) -> str | None:
        """What the goal gains, with the bounds of it by the error of the last check; None: nothing is advised."""
        error = error_of(self.best.machine, _FIGURES[self.goal])
        if self.best is self.trials[0] or error is None:
            return None
        gain = self.best.worth(self.goal) / max(1e-9, self.trials[0].worth(self.goal))
        bounds = f"{gain / (1.0 + error):.2f} to {gain * (1.0 + error):.2f}x"
        return f"{bounds} as good in {self.goal}: {gain:.2f}x by a forecast with an error of {100 * error:.0f} %"

    @property
    def frontier(self) -> list[TuningTrial]:
        """The trials that no other one beats in both latency and machine time, the fastest first."""
        leading: list[TuningTrial] = []
        for trial in sorted(self.trials, key=lambda trial: (trial.latency_s, trial.machine_s_per_million)):
            if not leading or trial.machine_s_per_million < leading[-1].machine_s_per_million:
                leading.append(trial)
        return leading

    @property
    def settings(self) -> dict[str, float]:
        """The engine's settings that changed."""
        before, after = self.trials[0].machine.engine, self.best.machine.engine
        return {name: getattr(after, name) for name in SETTINGS if getattr(after, name) != getattr(before, name)}


def tune(
    trace: Trace,
    setting: RehearsedServer,
    goal: TuningGoal,
    within: LatencyGoal,
    notify: Callable[[TuningTrial], object] = lambda trial: None,
    *,
    with_default: bool = False,
) -> Tuning:
    """Change one thing after the other, each as it is best after those before: the rules' terms, then settings.

    A change that refuses more requests, whose passes were not measured, or whose gain is within the error of the
    forecast is never taken. The default is changed only `with_default`.
    """
    policy = setting.policy or Policy(default=GivenTerms(mode="on"))
    best = _tried("", trace, replace(setting, policy=policy), within)
    trials = [best]
    notify(best)
    num_requests, advised = _num_requests(trace, policy), dict[str, Advice]()
    drafted = {name for line in trace.lines for name in line.drafts} - {SYNTHETIC}
    for name, number in num_requests.items():
        if name == DEFAULT_RULE and not with_default:
            continue
        changes = _settings(best) if name == _SETTINGS_STEP else _terms(best, name, drafted)
        tried = [best]
        for changed, tried_policy, tried_machine in changes if number >= FEWEST_REQUESTS else ():
            tried.append(_tried(changed, trace, replace(setting, policy=tried_policy, machine=tried_machine), within))
            notify(tried[-1])
        trials += tried[1:]
        leading, advised[name] = _leading(tried, goal, number)
        best = leading if advised[name].mode == "on" else best
    return Tuning(trials, best, goal, num_requests, advised)


def _leading(tried: Sequence[TuningTrial], goal: TuningGoal, num_requests: int) -> tuple[TuningTrial, Advice]:
    """Return the best of these trials, and whether it is to be taken in place of the first one."""
    first = tried[0]
    allowed = [trial for trial in tried if trial.num_refused <= first.num_refused and not trial.not_measured]
    leading = max(allowed, key=lambda trial: trial.worth(goal), default=first)
    gain, not_measured = leading.worth(goal) / max(1e-9, first.worth(goal)), first.not_measured or leading.not_measured
    advised = advice(num_requests, [gain], first.machine, _FIGURES[goal], not_measured)
    if leading is first and num_requests >= FEWEST_REQUESTS and not not_measured:
        advised = Advice("off", f"none of {len(tried) - 1} changes is better" if tried[1:] else "pinned, or in shadow")
    return leading, advised


_Change = tuple[str, Policy, Machine]


def _terms(best: TuningTrial, name: str, drafted: Set[str]) -> Iterator[_Change]:
    terms = dict(best.policy.named_terms())[name]
    if terms.pinned or terms.mode == "shadow":
        return
    for words, tried in _alternatives(terms, best.machine, drafted):
        if any(getattr(terms, field) != value for field, value in tried.items()):
            yield f"{name}: {words}", _changed(best.policy, name, tried), best.machine


def _alternatives(terms: Terms, machine: Machine, drafted: Set[str]) -> Iterator[tuple[str, dict[str, object]]]:
    yield "off", {"mode": "off"}
    among = {"the proposers it has": terms.proposers}
    free = tuple(sorted(name for name, cost in machine.proposers.items() if cost.free and name in drafted))
    if 0 < len(free) < len(machine.proposers):
        among["the free proposers"] = free
    for (by, proposers), ceiling in product(among.items(), CEILINGS):
        words = f"{by}, at most {ceiling} tokens" if ceiling else f"{by}, as many tokens as the engine drafts"
        yield words, {"mode": "on", "proposers": proposers, "num_speculative_tokens": ceiling}


def _settings(best: TuningTrial) -> Iterator[_Change]:
    for name, factors in SETTINGS.items():
        now = getattr(best.machine.engine, name)
        for factor in factors:
            value = type(now)(max(1, now * factor))
            if name == "max_step_tokens" and value > best.machine.measured_tokens:
                continue
            engine = replace(best.machine.engine, **{name: value})
            yield f"{name} {value:g}", best.policy, replace(best.machine, engine=engine)


def _num_requests(trace: Trace, policy: Policy) -> dict[str, int]:
    """Return how many requests each step of the search concerns, in its order."""
    rules = [policy.rule_for(line.facts()) for line in trace.lines]
    names = [rule.name if rule else DEFAULT_RULE for rule in rules]
    return {name: names.count(name) for name, _ in policy.named_terms()} | {_SETTINGS_STEP: len(names)}


def _tried(changed: str, trace: Trace, setting: RehearsedServer, within: LatencyGoal) -> TuningTrial:
    assert setting.policy is not None, "each trial has a policy"
    rehearsal = rehearse(trace, replace(setting, policy=without_rollouts(setting.policy)))
    served = rehearsal.served
    return TuningTrial(
        changed=changed,
        latency_s=sum(outcome.total_s or 0.0 for outcome in served) / max(1, len(served)),
        machine_s_per_million=1e6 * rehearsal.busy_s / max(1, rehearsal.num_tokens),
        goodput=sum(outcome.keeps(within) for outcome in served) / max(rehearsal.seconds, 1e-9),
        num_refused=len(rehearsal.outcomes) - len(served),
        not_measured=rehearsal.not_measured,
        policy=setting.policy,
        machine=setting.machine,
    )


_TUNED = ("mode", "proposers", "num_speculative_tokens")


def rolled_out(before: Policy, after: Policy) -> Policy:
    """Return `after` with a rollout of each rule that drafts differently: a canary against the terms before."""
    old = dict(before.named_terms())
    for name, terms in after.named_terms():
        was = {field: getattr(old[name], field) for field in _TUNED}
        differs = {field: value for field, value in was.items() if value != getattr(terms, field)}
        if differs and terms.mode == "on":
            against = {field: value for field, value in differs.items() if field != "mode"}
            guarded = {} if terms.guardrails else {"guardrails": list(GUARDRAILS)}
            after = _changed(after, name, {**guarded, "rollout": {"against": against} if was["mode"] == "on" else {}})
    return after


def _changed(policy: Policy, name: str, changes: Mapping[str, object]) -> Policy:
    """Return the policy with changes of the rule, or the default, of this name."""
    plain = policy.model_dump(mode="json", exclude_unset=True)
    parts = [plain.setdefault("default", {}), *plain.get("rules", ())]
    next(part for part in parts if part.get("name", DEFAULT_RULE) == name).update(changes)
    return Policy.model_validate(plain)
