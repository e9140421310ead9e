"""`prolepsis train`: counts as people write them, and what is refused before anything is loaded."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from prolepsis.core.errors import InvalidParameter
from prolepsis.engine.models.heads.format import read_config
from prolepsis.server.cli.main import app
from prolepsis.training.commands import WITH_RESUME, count, resumable
from prolepsis.training.text import read_texts
from tests.training.targets import save_target


@pytest.mark.parametrize(("text", "number"), [("500k", 500_000), ("10M", 10**7), ("1.5m", 1_500_000), ("42", 42)])
def test_counts(text: str, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "ten", "10 MB", "-5", "1e6"])
def test_invalid_counts(text: str) -> None:
    with pytest.raises(InvalidParameter, match="not a count"):
        count(text)


def test_the_command_lists_its_options() -> None:
    shown = CliRunner().invoke(app, ["train", "head", "--help"])
    assert shown.exit_code == 0
    for flag in ("--target", "--tokens", "--out", "--prompts", "--text", "--resume", "--init", "--levels"):
        assert flag in shown.output


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("")
    shown = CliRunner().invoke(app, ["train", "head", "--target", str(tmp_path), "--out", str(tmp_path)])
    assert shown.exit_code == 2
    assert "--resume" in shown.stderr


def test_a_head_from_recorded_text_and_the_text_again(tmp_path: Path) -> None:
    folder = save_target(tmp_path / "target")
    random = torch.Generator().manual_seed(1)
    lines = [torch.randint(3, 259, (24,), generator=random).tolist() for _ in range(60)]
    file, out = tmp_path / "text.jsonl", tmp_path / "out"
    file.write_text("".join(json.dumps({"prompt": ids[:8], "answer": ids[8:]}) + "\n" for ids in lines))
    arguments = ["train", "head", "--target", str(folder), "--out", str(out), "--text", str(file), "--levels", "0"]
    small = ["--heads", "6", "--kv-heads", "2", "--intermediate", "32", "--batch", "100", "--epochs", "1"]
    threads = torch.get_num_threads()
    shown = CliRunner().invoke(app, [*arguments, *small, "--draft-vocab", "96", "--threads", "1"])
    torch.set_num_threads(threads)
    assert shown.exit_code == 0, shown.output
    assert "draft head (EAGLE-3)" in shown.output
    assert "held-out acceptance" in shown.output
    assert read_config(out / "head").shape.heads == 6
    again = tmp_path / "again.jsonl.xz"
    shown = CliRunner().invoke(app, ["train", "text", str(again), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert {tuple(text.tokens) for text in read_texts(again, 259, ())} == {tuple(ids) for ids in lines}


def test_a_width_that_no_forward_takes_is_status_2(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["train", "head", "--out", str(tmp_path), "--intermediate", "100"])
    assert shown.exit_code == 2


def test_an_interrupted_training_says_how_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), resumable(WITH_RESUME):
        raise KeyboardInterrupt
    assert "the same command with --resume continues" in capsys.readouterr().err
