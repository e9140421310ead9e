"""What weights say of themselves, and what of it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.provenance import Provenance, provenance_of, read_provenance

SAID = {
    "version": 3,
    "target": "tiny",
    "target_fingerprint": "00ff",
    "tokenizer_fingerprint": "ab",
    "sha256": "cd",
    "acceptance": {"all": {"hits": [60, 30, 0], "trials": [100, 60, 30]}, "code": {"hits": [], "trials": []}},
    "steps": 1200,
    "data": {"tokens": 10_000_000},
}


def test_everything_said_is_read() -> None:
    read = read_provenance(SAID)
    assert (read.version, read.target, read.target_fingerprint, read.sha256) == (3, "tiny", "00ff", "cd")
    assert read.training == {"steps": 1200, "data": {"tokens": 10_000_000}}
    assert read.chain_of_3 == pytest.approx(1 + 0.6 + 0.6 * 0.5)
    assert read.acceptance["code"].length() == 1.0


def test_saying_nothing_is_fine(tmp_path: Path) -> None:
    assert read_provenance({}) == Provenance()
    assert Provenance().chain_of_3 is None
    assert provenance_of(tmp_path) is None
    (tmp_path / "config.json").write_text("{}")
    assert provenance_of(tmp_path) is None


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("trained", "prolepsis is 'trained'"),
        ({"version": "2"}, "prolepsis.version is '2'; allowed: a whole number"),
        ({"version": 0}, "prolepsis.version is 0"),
        ({"target": 7}, "prolepsis.target is 7; allowed: text, in quotes"),
        ({"acceptance": 0.6}, "prolepsis.acceptance is 0.6"),
        ({"acceptance": {"all": [1]}}, "prolepsis.acceptance.all is"),
    ],
)
def test_values_of_the_wrong_kind_are_named(tmp_path: Path, said: Any, fault: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"prolepsis": said}))
    with pytest.raises(ModelLoadError, match=fault):
        provenance_of(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{", ""])
def test_a_configuration_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json is not the configuration"):
        provenance_of(tmp_path)
