"""Gates: what every arm but `plain` has to reach, at each concurrency, so that a build can fail where it does not."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.config import listed
from prolepsis.lab.bench.arms import PLAIN

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
    """Yield what came of each gate; that of `exact` is the share of prompts with the tokens of plain decoding."""
    for level, of_level in report["concurrency"].items():
        for arm in (name for name in of_level["arms"] if name != PLAIN):
            outputs = report["outputs"][arm]["concurrency"][level]
            same = 1.0 - outputs["num_different"] / outputs["num_prompts"]
            for gate in gates:
                name, sign, bound = re.split("(>=|<=)", gate if gate != "exact" else "exact>=1")
                value = same if name == "exact" else of_level["arms"][arm][name]["median"]
                passed = value is not None and (value >= float(bound) if sign == ">=" else value <= float(bound))
                yield {"gate": gate, "arm": arm, "concurrency": level, "value": value, "passed": passed}
