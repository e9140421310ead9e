"""What `prolepsis profile` shows of a curve."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.core.requests import SamplingDefaults
from prolepsis.core.terminal.output import print_json
from prolepsis.engine.commands.profile import MachineLimit, ProductKind, Profile
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.models.files.quality import MeasuredQuality
from prolepsis.lab.profile import document, show

SAMPLING = SamplingDefaults(temperature=0.2, top_p=0.9, source="catalogue")


QUALITY = MeasuredQuality("m.gguf", "00ff", "int8", 0.012, 0.951, 12.34, 12.3, 20480, "texts", None)


def found(fallback: str | None = None, quality: MeasuredQuality | None = None) -> Profile:
    curve = CostCurve((1, 8), (64, 512), ((8.0, 10.0), (10.0, 11.0)))
    return Profile(
        "tiny", "lean (torch)", fallback, 2, "strict", "self-check", SAMPLING, Path("curve.json"), curve, quality
    )


def test_document_is_json_with_one_time_for_each_point(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(document(found()))
    read = json.loads(capsys.readouterr().out)
    assert read["curve"] == {"tokens": [1, 8], "contexts": [64, 512], "ms": [[8.0, 10.0], [10.0, 11.0]]}
    assert (read["default_sampling"]["temperature"], read["default_sampling"]["source"]) == (0.2, "catalogue")
    assert read["paying_loads"]["most"] == [4, 4]
    assert (read["exactness"], read["fallback"], read["file"]) == ("strict", None, "curve.json")


def test_show_gives_times_and_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    show(found("no C++ compiler on this machine"))
    text = capsys.readouterr().out
    for part in (
        "lean (torch)",
        "no C++ compiler",
        "strict",
        "8.00 (1.00x)",
        "10.00 (1.25x)",
        "11.00 (1.10x)",
        "temperature 0.2",
        "drafts can pay at all measured sizes: 4 at once, 512 tokens of context",
    ):
        assert part in text


def test_the_variant_is_shown_with_why_no_better_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    show(replace(found(), kernel="avx2, prebuilt (not avx_vnni: this processor lacks avx_vnni)"))
    assert "avx2, prebuilt (not avx_vnni" in capsys.readouterr().out
    assert document(found())["kernel"] is None


def test_quality_is_shown_if_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    show(found())
    assert "not measured for this model file" in capsys.readouterr().out
    show(found(quality=QUALITY))
    assert "same likeliest token 95.1%" in capsys.readouterr().out
    assert json.loads(json.dumps(document(found(quality=QUALITY)), default=str))["quality"]["kl"] == 0.012
    assert document(found())["quality"] is None


def test_the_limit_is_the_larger_bound(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = (ProductKind("layers, q4_k", 0.75, {1: 0.2, 64: 0.8}), ProductKind("attention, 512 cached", 0.1, {64: 0.4}))
    limit = MachineLimit(10**9, 2e11, 10**9, 1e12, {256: 320.0}, kinds)
    assert (limit.memory_ms, limit.arithmetic_ms(8)) == (5.0, 8.0)
    show(replace(found(), limit=limit))
    text = capsys.readouterr().out
    assert "it reads 200 GB/s and multiplies 1000 G/s" in text
    lines = [line.split() for line in text[text.index("of this machine's limit") :].splitlines()]
    assert ["1", "8.0", "5.0", "1.0", "62%"] in lines, "bound by memory"
    assert ["8", "10.0", "5.0", "8.0", "80%"] in lines, "bound by arithmetic"
    assert ["256", "320.0", "5.0", "256.0", "80%"] in lines, "a pass beyond the curve"
    assert ["layers,", "q4_k", "75%", "20%", "80%"] in lines
    assert ["attention,", "512", "cached", "10%", "40%"] in lines
    written = json.loads(json.dumps(document(replace(found(), limit=limit)), default=str))["limit"]
    assert (written["bytes_per_pass"], written["long_ms"]) == (10**9, {"256": 320.0})
    assert written["kinds"][1] == {"name": "attention, 512 cached", "share": 0.1, "reached": {"64": 0.4}}
