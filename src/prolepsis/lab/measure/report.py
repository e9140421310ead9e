"""The report of a measurement, as JSON and as tables: medians with their spread, ratios within one repeat."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.requests import SamplingParams
from prolepsis.core.terminal.output import print_table, stdout
from prolepsis.core.traffic_sums import ratio
from prolepsis.lab.measure.contenders import PLAIN, Outcome, Run, Schedule
from prolepsis.lab.measure.prompts import EncodedPrompt

ALL = "all"
NOT_LOOPING = "not looping"
"""Prompts whose plain output does not end in a loop: loops flatter proposers that copy."""
Figure = dict[str, object]
"""Median, min and max, and what they were taken from."""
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


def spread(values: Iterable[float | None]) -> Figure:
    """Return median, minimum and maximum of the values that are known; None where there are none."""
    known = sorted(value for value in values if value is not None)
    median = statistics.median(known) if known else None
    return {"median": median, "min": known[0] if known else None, "max": known[-1] if known else None}


class Figures:
    """Reads the runs of a measurement by category: the prompts' own, all, and where some loop the others."""

    def __init__(self, runs: Sequence[Run]) -> None:
        from prolepsis.training.synthesis import loop_end

        self.runs = runs
        self.names = list(dict.fromkeys(run.contender for run in runs))
        plain: Sequence[Outcome] = next((run.outcomes for run in runs if run.contender == PLAIN), ())
        self.looping = frozenset(o.prompt_id for o in plain if loop_end(o.token_ids) is not None)
        """Prompts whose plain output ends in a loop, in the first plain run."""
        named = dict.fromkeys(o.category for run in runs for o in run.outcomes)
        self.categories = [ALL, *named, *([NOT_LOOPING] if self.looping else [])]
        self.levels = sorted({run.concurrency for run in runs})

    def arm(self, name: str, concurrency: int, category: str = ALL) -> dict[str, Figure]:
        """Return the figures of one contender at one concurrency over the prompts of `category`."""
        of_runs = [self._within(run, category) for run in self._of(name, concurrency)]
        outcomes = [o for of_run in of_runs for o in of_run]
        return {
            "tokens_per_s": self.rates(name, concurrency, category),
            "speedup": self.ratio(name, PLAIN, concurrency, category),
            "acceptance": spread(_acceptance(of_run) for of_run in of_runs),
            "tokens_a_pass": spread(_tokens_a_pass(of_run) for of_run in of_runs),
            "p95_ms": spread(percentile([1e3 * o.seconds for o in of_run], 0.95) for of_run in of_runs),
            "ttft_ms": _times(outcomes, "first_token_s"),
            "latency_ms": _times(outcomes, "seconds"),
            "queue_ms": _times(outcomes, "queue_s"),
            "compute_ms": _times(outcomes, "compute_s"),
        }

    def rates(self, name: str, concurrency: int, category: str) -> Figure:
        """Return output tokens per second of each repeat."""
        values = [rate(run, self._within(run, category)) for run in self._of(name, concurrency)]
        return {**spread(values), "repeats": values}

    def ratio(self, name: str, base: str, concurrency: int, category: str) -> Figure:
        """Return the rate of `name` over that of `base`, within each repeat."""
        runs = (self._of(contender, concurrency) for contender in (name, base))
        rates, bases = ({run.repeat: rate(run, self._within(run, category)) for run in of_one} for of_one in runs)
        values = [rates[r] / bases[r] for r in sorted(rates) if bases.get(r, 0.0) > 0]
        return {**spread(values), "repeats": values}

    def differing(self, name: str, base: str, concurrency: int) -> tuple[int, list[str]]:
        """Return the number of prompts and the ids of those whose tokens ever differ from `base` run alone, first."""
        lowest = min(run.concurrency for run in self.runs if run.contender == base)
        reference = {o.prompt_id: o.token_ids for o in self._of(base, lowest)[0].outcomes}
        runs = self._of(name, concurrency)
        different = {o.prompt_id for run in runs for o in run.outcomes if o.token_ids != reference[o.prompt_id]}
        return len(reference), [prompt for prompt in reference if prompt in different]

    def outputs(self, name: str, base: str) -> dict[str, object]:
        """Return on how many prompts the tokens of `name` and `base` differ, by concurrency, and on which."""
        levels = {}
        for level in self.levels:
            if self.has(name, level):
                count, different = self.differing(name, base, level)
                levels[str(level)] = {"num_prompts": count, "num_different": len(different), "different": different}
        return {"compared_with": base, "concurrency": levels}

    def has(self, name: str, concurrency: int) -> bool:
        return bool(self._of(name, concurrency))

    def _of(self, name: str, concurrency: int) -> list[Run]:
        return [run for run in self.runs if run.contender == name and run.concurrency == concurrency]

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


def _times(outcomes: Sequence[Outcome], name: str) -> Figure:
    """Return milliseconds over prompts and repeats."""
    values = [1e3 * seconds for o in outcomes if (seconds := getattr(o, name)) is not None]
    return {**spread(values), "p95": percentile(values, 0.95)}


def document(
    setting: Setting, runs: Sequence[Run], info: EngineInfo, provenance: Mapping[str, object]
) -> dict[str, object]:
    """Return the whole report: provenance, figures by arm and category, and by concurrency."""
    figures = Figures(runs)
    return {
        "provenance": dict(provenance),
        "settings": {
            "prompts": setting.prompts_file,
            "num_prompts": dict(Counter(prompt.category for prompt in setting.prompts)),
            "looping": sorted(figures.looping),
            **{name: getattr(setting.params, name) for name in ("max_tokens", "temperature", "top_p")},
            "concurrency": list(setting.schedule.concurrency),
            "repeats": setting.schedule.repeats,
            "arms": list(setting.arms),
            "engine": asdict(info),
            "fairness": FAIRNESS,
        },
        "arms": {
            name: {category: figures.arm(name, 1, category) for category in figures.categories}
            for name in figures.names
            if figures.has(name, 1)
        },
        "concurrency": {
            str(level): {"arms": {name: figures.arm(name, level) for name in figures.names if figures.has(name, level)}}
            for level in figures.levels
        },
        "outputs": {name: figures.outputs(name, PLAIN) for name in setting.arms},
    }


Cell = Callable[[Mapping[str, Any]], str]
_COLUMNS: Mapping[str, Cell] = {
    "tokens/s": lambda arm: ranged(arm["tokens_per_s"], 1),
    "speedup": lambda arm: ranged(arm["speedup"], 2, "x"),
    "tokens a pass": lambda arm: _number(arm["tokens_a_pass"]["median"], 2),
    "first token ms": lambda arm: _number(arm["ttft_ms"]["median"], 0),
    "latency p50/p95 ms": lambda arm: _halves(arm["latency_ms"]),
    "queue p50/p95 ms": lambda arm: _halves(arm["queue_ms"]),
    "compute p50/p95 ms": lambda arm: _halves(arm["compute_ms"]),
}
"""Columns of the tables of contenders."""


def print_report(report: Mapping[str, Any]) -> None:
    """Print a report made by `document`."""

    def print_arms(title: str, arms: Mapping[str, Mapping[str, Any]]) -> None:
        rows = [[name, *(cell(figures) for cell in _COLUMNS.values())] for name, figures in arms.items()]
        print_table(title, ["arm", *_COLUMNS], rows)

    first: Mapping[str, Any] = next(iter(report["arms"].values()), {})
    for category in sorted(first, key=lambda category: category == ALL):
        of_category = {name: of_arm[category] for name, of_arm in report["arms"].items()}
        print_arms(f"{category}, one request at a time", of_category)
    for level, of_level in report["concurrency"].items():
        if level != "1":
            print_arms(f"all prompts, {level} requests at a time", of_level["arms"])
    same = [
        [name, level, result["compared_with"], f"{number - counts['num_different']} of {number}"]
        for name, result in report["outputs"].items()
        for level, counts in result["concurrency"].items()
        for number in (counts["num_prompts"],)
    ]
    print_table("same tokens", ["arm", "at a time", "as", "prompts"], same)
    if gates := report.get("gates"):
        shown = ((g["gate"], g["arm"], g["concurrency"], _number(g["value"], 3), g["passed"]) for g in gates)
        rows = [[*cells, "pass" if passed else "fail"] for *cells, passed in shown]
        print_table("gates", ["required", "arm", "at a time", "measured", "result"], rows)
    repeats = report["settings"]["repeats"]
    stdout().print(f"[dim]Rates and ratios: median and range over {repeats} repeats.[/]", soft_wrap=True)


def print_sentence(report: Mapping[str, Any]) -> None:
    """Print the sentence at the end of a measurement (`gates.quote`)."""
    stdout().print(report["sentence"], markup=False, highlight=False, soft_wrap=True)


def ranged(figure: Mapping[str, Any], digits: int, unit: str = "") -> str:
    """Return a figure as its median and range, such as 1.80x (1.60-2.00)."""
    if figure["median"] is None:
        return "-"
    median, low, high = (_number(figure[name], digits) for name in ("median", "min", "max"))
    return f"{median}{unit} ({low}-{high})"


def _halves(figure: Mapping[str, Any]) -> str:
    return "-" if figure["median"] is None else f"{_number(figure['median'], 0)}/{_number(figure['p95'], 0)}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
