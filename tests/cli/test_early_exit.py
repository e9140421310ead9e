"""What `prolepsis profile early-exit` shows."""

import json
from pathlib import Path

import pytest

from prolepsis.cli.early_exit import Found, document, show, verdict
from prolepsis.cli.output import print_json
from prolepsis.engine.exit_search import ExitSearch, figures


def found(*level_ms: float) -> Found:
    passes = (10.0, 10.5, 11.0)
    exits = tuple(figures(i + 1, (0.5, 0.25), ms, passes) for i, ms in enumerate(level_ms))
    return Found("tiny", "lean (torch)", Path("layer.json"), ExitSearch(957, 8192, 0.848, passes, exits))


def test_show_has_a_line_for_each_layer_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    show(found(1.0, 9.0))
    text = capsys.readouterr().out
    for part in ("8192 (84.8% of 957", "10.0, 10.5, 11.0", "layer.json", "50.0%", "25.0%", "1.00", "9.00", "1.35x"):
        assert part in text
    assert "Worth it: 1.35x of plain decoding, from layer 1 at depth 2." in text


def test_where_it_does_not_pay_the_verdict_says_so() -> None:
    assert verdict(found(9.0).search).startswith("Do not use it: the best is 0.77x of plain decoding, from layer 1")


def test_document_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(document(found(1.0, 9.0)))
    read = json.loads(capsys.readouterr().out)
    assert read["best"] == {"num_layers": 1, "depth": 2, "speedup": pytest.approx(17.5 / 13.0)}
    assert read["worth_it"] is True
    assert [each["survivals"] for each in read["exits"]] == [[0.5, 0.25]] * 2
