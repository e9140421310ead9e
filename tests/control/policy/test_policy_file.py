"""A file taken over as a whole, or not at all."""

import os
from pathlib import Path

import pytest

from prolepsis.control.policy.check import Known
from prolepsis.control.policy.source import PolicyFile
from prolepsis.core.errors import ConfigError

OFF, ON, BAD = "default: {mode: off}\n", "default: {mode: on}\n", "default: {mode: maybe}\n"


def write(path: Path, text: str) -> None:
    """Replace the file, as editors and configuration management do."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def mode(file: PolicyFile) -> str:
    return file.policy.default_terms.mode


def test_a_good_edit_is_taken_and_a_bad_one_leaves_the_last_good(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, OFF)
    file = PolicyFile(path)
    assert not file.poll().changed
    assert mode(file) == "off"

    write(path, ON)
    assert file.poll().changed
    assert mode(file) == "on"

    write(path, BAD)
    bad = file.poll()
    assert not bad.changed
    assert "policy.yaml:1: default.mode is 'maybe'" in str(bad.refused) == file.fault
    assert mode(file) == "on"
    assert file.poll().refused is None  # said once
    assert file.reload().refused is None

    path.unlink()
    assert "No such file" in str(file.poll().refused)
    assert file.poll().refused is None
    assert mode(file) == "on"

    write(path, OFF)
    assert file.poll().changed
    assert (mode(file), file.fault) == ("off", "")


def test_an_edit_without_effect_is_not_a_change(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, OFF)
    file = PolicyFile(path)
    write(path, f"# words\n{OFF}")
    assert not file.poll().changed
    write(path, f"version: 2\n{OFF}")
    assert file.poll().changed
    assert file.policy.version == "2"


def test_an_edit_of_equal_times_is_seen_when_told(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(ON + " " * (len(OFF) - len(ON)))
    file = PolicyFile(path)
    path.write_text(OFF)
    assert file.reload().changed
    assert mode(file) == "off"


def test_findings_refuse_too(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    write(path, "default: {mode: on, proposers: [sufix]}\n")
    PolicyFile(path)
    with pytest.raises(ConfigError, match="did you mean 'suffix'"):
        PolicyFile(path, Known(proposers=("suffix",)))


def test_without_a_file_there_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        PolicyFile(tmp_path / "none.yaml")
