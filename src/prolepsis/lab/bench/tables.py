"""The tables of a report, as text."""

from collections.abc import Mapping
from typing import Any

from prolepsis.core.terminal.output import print_table, stdout

ARM_COLUMNS = [
    "arm",
    "tokens/s",
    "speedup",
    "accept. length",
    "first token ms",
    "latency p50/p95 ms",
    "queue p50/p95 ms",
    "compute p50/p95 ms",
]
LEVEL_COLUMNS = ["arm", "tokens/s", "speedup", "p50 ms", "p95 ms", "queue p50/p95 ms", "compute p50/p95 ms"]


def print_report(report: Mapping[str, Any]) -> None:
    """Print a report made by `report.document`."""
    for category in _categories(report):
        rows = [_arm_row(name, of_arm[category]) for name, of_arm in report["arms"].items()]
        print_table(f"{category}, one request at a time", ARM_COLUMNS, rows)
    for level, of_level in report["concurrency"].items():
        if level != "1":
            rows = [_level_row(name, figures) for name, figures in of_level["arms"].items()]
            print_table(f"all prompts, {level} requests at a time", LEVEL_COLUMNS, rows)
    _print_outputs(report["outputs"])
    _print_steps(report["steps"])
    if gates := report.get("gates"):
        shown = ((g["gate"], g["arm"], g["concurrency"], _number(g["value"], 3), g["passed"]) for g in gates)
        rows = [[*cells, "pass" if passed else "fail"] for *cells, passed in shown]
        print_table("gates", ["required", "arm", "at a time", "measured", "result"], rows)
    repeats = report["settings"]["repeats"]
    stdout().print(f"[dim]Rates and ratios: median and range over {repeats} repeats.[/]", soft_wrap=True)


def print_sentence(report: Mapping[str, Any]) -> None:
    """Print the sentence at the end of a measurement (`quote`)."""
    stdout().print(report["sentence"], markup=False, highlight=False, soft_wrap=True)


def _categories(report: Mapping[str, Any]) -> list[str]:
    first: Mapping[str, Any] = next(iter(report["arms"].values()), {})
    return [*(c for c in first if c != "all"), *(c for c in first if c == "all")]


def _arm_row(name: str, figures: Mapping[str, Any]) -> list[str]:
    return [
        name,
        ranged(figures["tokens_per_s"], 1),
        ranged(figures["speedup"], 2, "x"),
        _number(figures["acceptance_length"]["median"], 2),
        _number(figures["ttft_ms"]["median"], 0),
        *(_halves(figures[key]) for key in ("latency_ms", "queue_ms", "compute_ms")),
    ]


def _level_row(name: str, figures: Mapping[str, Any]) -> list[str]:
    return [
        name,
        ranged(figures["throughput"], 1),
        ranged(figures["speedup"], 2, "x"),
        _number(figures["p50_ms"]["median"], 0),
        _number(figures["p95_ms"]["median"], 0),
        _halves(figures["queue_ms"]),
        _halves(figures["compute_ms"]),
    ]


def _print_outputs(outputs: Mapping[str, Any]) -> None:
    rows: list[list[str]] = []
    for name, result in outputs.items():
        for level, counts in result["concurrency"].items():
            same = counts["num_prompts"] - counts["num_different"]
            rows.append([name, level, result["compared_with"], f"{same} of {counts['num_prompts']}"])
    print_table("same tokens", ["arm", "at a time", "as", "prompts"], rows)


def _print_steps(steps: Mapping[str, Any]) -> None:
    rows = [
        [arm, level, _number(mean["forward_ms"], 2), _number(mean["outside_forward_ms"], 2)]
        for level, of_level in steps.items()
        for arm, mean in of_level.items()
    ]
    if rows:
        print_table("mean step", ["arm", "at a time", "forward ms", "outside it ms"], rows)


def ranged(figure: Mapping[str, Any], digits: int, unit: str = "") -> str:
    if figure["median"] is None:
        return "-"
    low, high = _number(figure["min"], digits), _number(figure["max"], digits)
    return f"{_number(figure['median'], digits)}{unit} ({low}-{high})"


def _halves(figure: Mapping[str, Any]) -> str:
    return "-" if figure["median"] is None else f"{_number(figure['median'], 0)}/{_number(figure['p95'], 0)}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
