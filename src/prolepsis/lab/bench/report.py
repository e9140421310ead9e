"""The report of a measurement: medians with their spread, ratios within one repeat, as one JSON document."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.requests import SamplingParams
from prolepsis.core.traffic_sums import ratio
from prolepsis.lab.bench.arms import PLAIN
from prolepsis.lab.bench.measure import Outcome, Run, Schedule
from prolepsis.lab.bench.prompts import EncodedPrompt

ALL = "all"
NOT_LOOPING = "not looping"
"""Prompts whose plain output does not end in a loop: loops flatter proposers that copy."""
Figure = dict[str, object]
"""Median, min and max, and what they were taken from."""


def spread(values: Iterable[float | None]) -> Figure:
    """Return median, minimum and maximum of the values that are known; None where there are none."""
    found = sorted(value for value in values if value is not None)
    median = statistics.median(found) if found else None
    return {"median": median, "min": found[0] if found else None, "max": found[-1] if found else None}


class Figures:
    """Reads the runs of a measurement by category: the prompts' own, all, and where some loop the others."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.names = list(dict.fromkeys(run.contender for run in runs))
        self.looping = _looping(runs)
        named = dict.fromkeys(o.category for run in runs for o in run.outcomes)
        self.categories = [ALL, *named, *([NOT_LOOPING] if self.looping else [])]
        self.levels = sorted({run.concurrency for run in runs})

    def arm(self, name: str, category: str) -> dict[str, Figure]:
        """Return the figures of one contender at concurrency 1 over the prompts of `category`."""
        outcomes = [o for run in self._of(name, 1) for o in self._within(run, category)]
        return {
            "tokens_per_s": self.rates(name, 1, category),
            "speedup": self.ratio(name, PLAIN, 1, category),
            "acceptance_length": spread(_tokens_a_pass(self._within(run, category)) for run in self._of(name, 1)),
            "ttft_ms": _times(outcomes, lambda o: o.first_token_s),
            "latency_ms": _times(outcomes, lambda o: o.seconds),
            "queue_ms": _times(outcomes, lambda o: o.queue_s),
            "compute_ms": _times(outcomes, lambda o: o.compute_s),
        }

    def level(self, name: str, concurrency: int) -> dict[str, Figure]:
        """Return the figures of one contender at one concurrency over all prompts."""
        runs = self._of(name, concurrency)
        latencies = [[1e3 * o.seconds for o in run.outcomes] for run in runs]
        outcomes = [o for run in runs for o in run.outcomes]
        return {
            "throughput": self.rates(name, concurrency, ALL),
            "speedup": self.ratio(name, PLAIN, concurrency, ALL),
            "acceptance": spread(_acceptance(run.outcomes) for run in runs),
            "tokens_a_pass": spread(_tokens_a_pass(run.outcomes) for run in runs),
            "p50_ms": spread(percentile(of_run, 0.5) for of_run in latencies),
            "p95_ms": spread(percentile(of_run, 0.95) for of_run in latencies),
            "queue_ms": _times(outcomes, lambda o: o.queue_s),
            "compute_ms": _times(outcomes, lambda o: o.compute_s),
        }

    def ratio(self, name: str, base: str, concurrency: int, category: str) -> Figure:
        """Return the rate of `name` over that of `base`, within each repeat."""
        runs = (self._of(one, concurrency) for one in (name, base))
        rates, bases = ({run.repeat: rate(run, self._within(run, category)) for run in of_one} for of_one in runs)
        values = [rates[r] / bases[r] for r in sorted(rates) if bases.get(r, 0.0) > 0]
        return {**spread(values), "repeats": values}

    def steps(self, name: str, concurrency: int) -> dict[str, float] | None:
        """Return mean milliseconds of a target pass and of a step outside it; None if they are unknown."""
        runs = self._of(name, concurrency)
        passes = sum(run.num_passes for run in runs)
        if not passes:
            return None
        return {
            "num_passes": passes,
            "forward_ms": 1e3 * sum(run.forward_s for run in runs) / passes,
            "outside_forward_ms": 1e3 * sum(run.outside_forward_s for run in runs) / passes,
        }

    def differing(self, name: str, base: str, concurrency: int) -> tuple[int, list[str]]:
        """Return the number of prompts and the ids of those whose tokens ever differ from `base` run alone, first."""
        lowest = min(run.concurrency for run in self.runs if run.contender == base)
        reference = {o.prompt_id: o.token_ids for o in self._of(base, lowest)[0].outcomes}
        runs = self._of(name, concurrency)
        different = {o.prompt_id for run in runs for o in run.outcomes if o.token_ids != reference[o.prompt_id]}
        return len(reference), [prompt for prompt in reference if prompt in different]

    def has(self, name: str, concurrency: int) -> bool:
        return bool(self._of(name, concurrency))

    def _of(self, name: str, concurrency: int) -> list[Run]:
        return [run for run in self.runs if run.contender == name and run.concurrency == concurrency]

    def rates(self, name: str, concurrency: int, category: str) -> Figure:
        """Return output tokens per second of each repeat."""
        values = [rate(run, self._within(run, category)) for run in self._of(name, concurrency)]
        return {**spread(values), "repeats": values}

    def _within(self, run: Run, category: str) -> list[Outcome]:
        if category == NOT_LOOPING:
            return [o for o in run.outcomes if o.prompt_id not in self.looping]
        return [o for o in run.outcomes if category in (ALL, o.category)]


def _tokens_a_pass(outcomes: Sequence[Outcome]) -> float | None:
    counted = [o for o in outcomes if o.num_steps]
    return ratio(sum(len(o.token_ids) for o in counted), sum(o.num_steps or 0 for o in counted))


def _acceptance(outcomes: Sequence[Outcome]) -> float | None:
    counts = [of_proposer for o in outcomes for of_proposer in o.proposers]
    return ratio(sum(accepted for _, _, accepted in counts), sum(drafted for _, drafted, _ in counts))


def rate(run: Run, outcomes: Sequence[Outcome]) -> float:
    """Return output tokens per second: over the sum of latencies for one at a time, over wall time above that."""
    seconds = sum(o.seconds for o in outcomes) if run.concurrency == 1 else run.wall_s
    return sum(len(o.token_ids) for o in outcomes) / seconds if seconds > 0 else 0.0


def _looping(runs: Sequence[Run]) -> frozenset[str]:
    """Return the prompts whose plain output ends in a loop, in the first plain run."""
    from prolepsis.training.synthesis import loop_end

    plain = next((run for run in runs if run.contender == PLAIN), None)
    return frozenset(o.prompt_id for o in plain.outcomes if loop_end(o.token_ids) is not None) if plain else frozenset()


def _times(outcomes: Sequence[Outcome], seconds: Callable[[Outcome], float | None]) -> Figure:
    """Milliseconds over prompts and repeats."""
    values = [1e3 * s for o in outcomes if (s := seconds(o)) is not None]
    return {**spread(values), "p95": percentile(values, 0.95)}


FAIRNESS = (
    "Repeats are the outer loop. At concurrency 1 contenders take turns prompt by prompt, above it set by set; who "
    "goes first rotates. A speedup is a ratio within one repeat. Each arm has a fresh tenant scope in each repeat and "
    "at each concurrency, so prefix cache and suffix index start empty; within one they learn from prompt to prompt."
)


@dataclass(frozen=True, slots=True)
class Setting:
    """Plan of a measurement."""

    prompts_file: str
    prompts: Sequence[EncodedPrompt]
    schedule: Schedule
    params: SamplingParams
    arms: tuple[str, ...]


def document(
    setting: Setting, runs: Sequence[Run], info: EngineInfo, provenance: Mapping[str, object]
) -> dict[str, object]:
    """Return the whole report: provenance, figures by arm and category, and by concurrency."""
    figures = Figures(runs)
    return {
        "provenance": dict(provenance),
        "settings": _settings(setting, info, figures.looping),
        "arms": {
            name: {category: figures.arm(name, category) for category in figures.categories}
            for name in figures.names
            if figures.has(name, 1)
        },
        "concurrency": {
            str(level): {
                "arms": {name: figures.level(name, level) for name in figures.names if figures.has(name, level)}
            }
            for level in figures.levels
        },
        "outputs": {name: outputs(figures, name, PLAIN) for name in setting.arms},
        "steps": {
            str(level): {arm: steps for arm in setting.arms if (steps := figures.steps(arm, level)) is not None}
            for level in figures.levels
        },
    }


def outputs(figures: Figures, name: str, base: str) -> dict[str, object]:
    """Return on how many prompts the tokens of `name` and `base` differ, by concurrency, and on which."""
    levels = {}
    for level in figures.levels:
        if figures.has(name, level):
            count, different = figures.differing(name, base, level)
            levels[str(level)] = {"num_prompts": count, "num_different": len(different), "different": different}
    return {"compared_with": base, "concurrency": levels}


def _settings(setting: Setting, info: EngineInfo, looping: Iterable[str]) -> dict[str, object]:
    return {
        "prompts": setting.prompts_file,
        "num_prompts": dict(Counter(prompt.category for prompt in setting.prompts)),
        "looping": sorted(looping),
        **{name: getattr(setting.params, name) for name in ("max_tokens", "temperature", "top_p")},
        "concurrency": list(setting.schedule.concurrency),
        "repeats": setting.schedule.repeats,
        "arms": list(setting.arms),
        "engine": asdict(info),
        "fairness": FAIRNESS,
    }
