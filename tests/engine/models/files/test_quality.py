"""The record of measured quality tells about the files that were measured, and about no others."""

from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.core.files import sha256_of
from prolepsis.engine.models.files.quality import MeasuredQuality, measured_quality, record_quality


@pytest.fixture
def record(tmp_path: Path) -> Path:
    (tmp_path / "quality.json").write_text("[]")
    return tmp_path / "quality.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").write_bytes(b"weights")
    return tmp_path / "m.gguf"


def measured(model: Path, rounding: str = "q4_1 weights, int8 activations", kl: float = 0.012) -> MeasuredQuality:
    return MeasuredQuality(model.name, sha256_of(model), rounding, kl, 0.951, 12.34, 12.3, 20480, "texts", "abc")


def test_figures_are_found_by_the_bytes_of_the_file(record: Path, model: Path, tmp_path: Path) -> None:
    record_quality([measured(model), measured(model, "q4_1 weights, bf16 activations")], record)
    assert [one.computation.split()[-2] for one in measured_quality(model, record)] == ["int8", "bf16"]
    other = tmp_path / "elsewhere" / "m.gguf"
    other.parent.mkdir()
    other.write_bytes(b"other weights")
    assert measured_quality(other, record) == []
    assert measured_quality(tmp_path / "missing" / "m.gguf", record) == []
    assert measured_quality(tmp_path, record) == []


def test_new_figures_replace_those_of_the_same_file_and_computation(record: Path, model: Path) -> None:
    others = replace(measured(model), sha256="00ff")
    record_quality([measured(model), others], record)
    record_quality([measured(model, kl=0.02)], record)
    assert [one.kl for one in measured_quality(model, record)] == [0.02]
    assert "00ff" in record.read_text()


def test_figures_are_shown_in_words(model: Path) -> None:
    text = measured(model).describe()
    for part in ("KL 0.012 nats", "95.1%", "perplexity 12.34 (float32 12.30)", "20480 tokens of texts"):
        assert part in text
