"""`prolepsis train`: counts as people write them, and what is refused before anything is loaded."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prolepsis.cli.main import app
from prolepsis.cli.train import count
from prolepsis.core.errors import InvalidParameter


@pytest.mark.parametrize(("text", "number"), [("500k", 500_000), ("10M", 10**7), ("1.5m", 1_500_000), ("42", 42)])
def test_counts(text: str, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "ten", "10 MB", "-5", "1e6"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(InvalidParameter, match="no count"):
        count(text)


def test_commands_are_listed() -> None:
    shown = CliRunner().invoke(app, ["train", "head", "--help"])
    assert shown.exit_code == 0
    for flag in ("--target", "--tokens", "--out", "--prompts", "--resume", "--init"):
        assert flag in shown.output


def test_a_used_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prolepsis.cli.train.ensure_model", lambda settings: None)
    (tmp_path / "something").write_text("")
    shown = CliRunner().invoke(app, ["train", "head", "--out", str(tmp_path)])
    assert shown.exit_code == 2
