"""What a measurement shows: gates, so that a build can fail, and a sentence to quote, or why there is none."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prolepsis.core.config import SYNTHETIC
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.config import listed
from prolepsis.lab.measure.contenders import AUTO, PLAIN
from prolepsis.lab.measure.report import ALL, NOT_LOOPING, Figure, Figures, Setting

FIGURES = ("acceptance", "speedup", "tokens_a_pass", "p95_ms")
_GATE = re.compile(rf"({'|'.join(FIGURES)})(>=|<=)(\d+(\.\d+)?)|exact")


def parse_gates(text: str) -> Sequence[str]:
    """Return the gates of a comma-separated list; raises `ConfigError`."""
    for gate in (gates := listed(text)):
        if not _GATE.fullmatch(gate):
            allowed = f"exact, or one of {', '.join(FIGURES)} with >= or <= and a number, such as speedup>=1.1"
            raise ConfigError(f"gate is {gate!r}; allowed: {allowed}", param="gate")
    return gates


def judged(gates: Sequence[str], report: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what came of each gate for every arm but `plain`, at each concurrency.

    That of `exact` is the share of prompts with the tokens of plain decoding.
    """
    for level, of_level in report["concurrency"].items():
        for arm in (name for name in of_level["arms"] if name != PLAIN):
            outputs = report["outputs"][arm]["concurrency"][level]
            same = 1.0 - outputs["num_different"] / outputs["num_prompts"]
            for gate in gates:
                name, sign, bound = re.split("(>=|<=)", gate if gate != "exact" else "exact>=1")
                value = same if name == "exact" else of_level["arms"][arm][name]["median"]
                passed = value is not None and (value >= float(bound) if sign == ">=" else value <= float(bound))
                yield {"gate": gate, "arm": arm, "concurrency": level, "value": value, "passed": passed}


def quote(figures: Figures, setting: Setting, info: EngineInfo, hardware: Mapping[str, object]) -> str:
    """Return the sentence, about `auto` or else the first arm that speculates, at the fewest requests at once."""
    if fault := "the drafts are synthetic" if SYNTHETIC in info.proposers else _fault(figures, setting):
        return f"No figure to quote: {fault}."
    level, params = figures.levels[0], setting.params
    name = next((arm for arm in (AUTO, *setting.arms[1:]) if arm in setting.arms), PLAIN)
    at_once = "one at a time" if level == 1 else f"{level} at once"
    sampling = f"temperature {params.temperature:g}" if params.temperature else "greedy"
    where = f"{info.model} on {hardware['cores']} cores of {hardware['processor']}, {at_once}, {sampling}"
    num_prompts, different = figures.differing(name, PLAIN, level)
    loops = f", {len(figures.looping)} of them looping and left out of the speed" if figures.looping else ""
    prompts = f"{num_prompts} prompts of {Path(setting.prompts_file).name}{loops}, to {params.max_tokens} tokens each"
    result = _result(figures, name, level, NOT_LOOPING if figures.looping else ALL)
    equal = f"{num_prompts - len(different)} of {num_prompts} answers as plain"
    return f"{where}: {result}, {equal} ({prompts}; median and range of {setting.schedule.repeats} repeats)."


def _fault(figures: Figures, setting: Setting) -> str:
    """Return why speed and acceptance of this measurement say nothing about real answers; empty if nothing is wrong."""
    if setting.params.ignore_eos:
        return "ends of answers were ignored, and what a model writes beyond its end is easy to guess"
    if any(prompt.is_synthetic for prompt in setting.prompts):
        return "the prompts are declared synthetic, and drafts of such text are accepted at rates of its own"
    text, number = Counter(prompt.token_ids for prompt in setting.prompts).most_common(1)[0]
    if number > 1:
        ids = ", ".join(prompt.id for prompt in setting.prompts if prompt.token_ids == text)
        return f"the prompts {ids} are the same, so all but the first answer can be copied"
    if len(figures.looping) == len(setting.prompts):
        return "all answers end in a loop, which is easy to guess"
    return ""


def _result(figures: Figures, name: str, level: int, category: str) -> str:
    rate = _shown(figures.rates(name, level, category), 1)
    if name == PLAIN:
        return f"plain decoding emits {rate} tokens/s"
    length = figures.arm(name, level, category)["tokens_a_pass"]["median"] if level == 1 else None
    tokens = f", {length:.2f} tokens a pass" if length is not None else ""
    return f"`{name}` emits {_shown(figures.ratio(name, PLAIN, level, category), 2, 'x')} of plain tokens/s{tokens}"


def _shown(figure: Figure, digits: int, unit: str = "") -> str:
    return f"{figure['median']:.{digits}f}{unit} ({figure['min']:.{digits}f} to {figure['max']:.{digits}f})"
