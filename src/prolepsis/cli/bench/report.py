"""The JSON document of a measurement."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from prolepsis.cli.bench.arms import PLAIN
from prolepsis.cli.bench.figures import ALL, Figures
from prolepsis.cli.bench.measure import Measurement, Schedule
from prolepsis.cli.bench.prompts import EncodedPrompt
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.client import EngineInfo

FAIRNESS = (
    "Repeats are the outer loop. At concurrency 1 contenders take turns prompt by prompt, above it set by set; who "
    "goes first rotates. speedup and against are ratios within one repeat. Each arm has a fresh tenant scope in each "
    "repeat and at each concurrency, so prefix cache and suffix index start empty; within one they learn from prompt "
    "to prompt. Peers empty their caches at the same points, and their processes are stopped while others run."
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What was asked for."""

    prompts_file: str
    prompts: Sequence[EncodedPrompt]
    schedule: Schedule
    params: SamplingParams
    arms: tuple[str, ...]
    peers: tuple[str, ...]
    """Those asked for, whether they ran or not."""


def document(
    setting: Setting, done: Measurement, info: EngineInfo, provenance: Mapping[str, object]
) -> dict[str, object]:
    """Return the whole report: provenance, figures by arm and category, by concurrency, and against each peer."""
    figures = Figures(done.runs)
    return {
        "provenance": dict(provenance),
        "settings": _settings(setting, info, figures.looping),
        "arms": _arms(figures) if 1 in figures.levels else {},
        "concurrency": {str(level): {"arms": _level(figures, level)} for level in figures.levels},
        "against": {str(level): _against(figures, setting.arms, level) for level in figures.levels},
        "outputs": {name: _outputs(figures, name) for name in figures.names},
        "steps": {str(level): _steps(figures, setting.arms, level) for level in figures.levels},
        "peers_failed": dict(done.failed),
        "peers_disturbed": _disturbance(done, setting.arms),
    }


def base_of(name: str, names: Sequence[str]) -> str | None:
    """Return the plain contender that `name`'s tokens are compared with: its own peer's, or our plain arm."""
    kind, colon, _ = name.partition(":")
    base = f"{kind}:{PLAIN}" if colon else PLAIN
    return base if base in names else None


def _settings(setting: Setting, info: EngineInfo, looping: Iterable[str]) -> dict[str, object]:
    counts: dict[str, int] = {}
    for prompt in setting.prompts:
        counts[prompt.category] = counts.get(prompt.category, 0) + 1
    return {
        "prompts": setting.prompts_file,
        "num_prompts": counts,
        "looping": sorted(looping),
        "max_tokens": setting.params.max_tokens,
        "temperature": setting.params.temperature,
        "top_p": setting.params.top_p,
        "concurrency": list(setting.schedule.concurrency),
        "repeats": setting.schedule.repeats,
        "arms": list(setting.arms),
        "peers": list(setting.peers),
        "engine": asdict(info),
        "fairness": FAIRNESS,
    }


def _arms(figures: Figures) -> dict[str, object]:
    return {
        name: {category: figures.arm(name, category) for category in figures.categories}
        for name in figures.names
        if figures.has(name, 1)
    }


def _level(figures: Figures, level: int) -> dict[str, object]:
    return {name: figures.level(name, level) for name in figures.names if figures.has(name, level)}


def _against(figures: Figures, arms: Sequence[str], level: int) -> dict[str, object]:
    peers = [name for name in figures.names if name not in arms and figures.has(name, level)]
    categories = figures.categories if level == 1 else [ALL]
    return {
        arm: {peer: {c: figures.ratio(arm, peer, level, c) for c in categories} for peer in peers}
        for arm in arms
        if peers and figures.has(arm, level)
    }


def _outputs(figures: Figures, name: str) -> dict[str, object]:
    base = base_of(name, figures.names)
    if base is None:
        return {"compared_with": None, "concurrency": {}}
    levels = {}
    for level in figures.levels:
        if figures.has(name, level):
            count, different = figures.differing(name, base, level)
            levels[str(level)] = {"num_prompts": count, "num_different": len(different), "different": different}
    return {"compared_with": base, "concurrency": levels}


def _steps(figures: Figures, arms: Sequence[str], level: int) -> dict[str, object]:
    return {arm: steps for arm in arms if (steps := figures.steps(arm, level)) is not None}


def _disturbance(done: Measurement, arms: Sequence[str]) -> float | None:
    """The largest share of one core this process took while a peer ran."""
    shares = [run.bench_cpu_s / run.wall_s for run in done.runs if run.contender not in arms and run.wall_s > 0]
    return max(shares, default=None)
