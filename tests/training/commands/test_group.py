"""`prolepsis train`: counts as people write them, and what is refused before anything is loaded."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from prolepsis.core.errors import InvalidParameter
from prolepsis.engine.models.draft_models import list_draft_models
from prolepsis.engine.models.heads.format import read_config
from prolepsis.server.cli.main import app
from prolepsis.training.commands.training import WITH_RESUME, count, resumable
from prolepsis.training.target import open_target
from prolepsis.training.text import read_texts
from tests.training.language import language_run
from tests.training.targets import save_target


@pytest.mark.parametrize(("text", "number"), [("500k", 500_000), ("10M", 10**7), ("1.5m", 1_500_000), ("42", 42)])
def test_counts(text: str, number: int) -> None:
    assert count(text) == number


@pytest.mark.parametrize("text", ["", "ten", "10 MB", "-5", "1e6"])
def test_invalid_counts(text: str) -> None:
    with pytest.raises(InvalidParameter, match="not a count"):
        count(text)


FLAGS = ("--target", "--tokens", "--out", "--prompts", "--text", "--resume")


@pytest.mark.parametrize(
    ("command", "flags"), [("head", ("--init", "--levels")), ("draft-model", ("--layers", "--hidden"))]
)
def test_commands_are_listed(command: str, flags: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, ["train", command, "--help"])
    assert shown.exit_code == 0
    for flag in (*FLAGS, *flags):
        assert flag in shown.output


@pytest.mark.parametrize("command", ["head", "draft-model"])
def test_a_used_folder_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "something").write_text("")
    shown = CliRunner().invoke(app, ["train", command, "--target", str(tmp_path), "--out", str(tmp_path)])
    assert shown.exit_code == 2
    assert "--resume" in shown.stderr


def test_a_draft_model_from_text_to_export(tmp_path: Path) -> None:
    folder = save_target(tmp_path / "target")
    place = language_run(open_target(str(folder)), tmp_path / "out")
    arguments = ["train", "draft-model", "--target", str(folder), "--out", str(place.root), "--tokens", "500"]
    small = ["--layers", "1", "--hidden", "32", "--loss-vocab", "100", "--batch", "200", "--epochs", "1"]
    threads = torch.get_num_threads()
    shown = CliRunner().invoke(app, [*arguments, *small, "--threads", "1", "--resume"])
    torch.set_num_threads(threads)
    assert shown.exit_code == 0, shown.output
    assert "held-out acceptance" in shown.output
    (entry,) = list_draft_models(place.root)
    assert (entry.folder, entry.target) == (place.exported, str(folder))
    assert json.loads(place.result.read_text())["product"]["name"] == "draft model"


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
    assert read_config(out / "head").shape.heads == 6
    again = tmp_path / "again.jsonl.xz"
    shown = CliRunner().invoke(app, ["train", "text", str(again), "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert {tuple(text.tokens) for text in read_texts(again, 259, ())} == {tuple(ids) for ids in lines}


def test_a_width_that_no_forward_takes_is_status_2(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["train", "draft-model", "--out", str(tmp_path), "--hidden", "100"])
    assert shown.exit_code == 2


def test_an_interrupted_training_says_how_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), resumable(WITH_RESUME):
        raise KeyboardInterrupt
    assert "the same command with --resume continues" in capsys.readouterr().err
