"""`prolepsis models` on a store in a temporary folder."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.cli.main import app
from prolepsis.cli.models import download_bar
from prolepsis.core.config import DEFAULT_MODEL
from prolepsis.models.store import MANIFEST, Manifest, Store

TINY = Manifest("owner/tiny", "hub:owner/tiny@abc", "tiny.gguf", 3_000_000, {"tiny.gguf": "00ff"}, "mit", "2026-01-01")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = Store(tmp_path).folder(TINY.name)
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(asdict(TINY)))
    return tmp_path


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments, "--model-dir", str(root)])


def test_list_shows_what_is_here_and_what_can_be_had(root: Path) -> None:
    result = run(root, "list")
    assert result.exit_code == 0
    assert "owner/tiny" in result.stdout
    assert DEFAULT_MODEL in result.stdout


def test_list_as_json(root: Path) -> None:
    document = json.loads(run(root, "list", "--json").stdout)
    assert document["directory"] == str(root)
    assert [model["name"] for model in document["models"]] == ["owner/tiny"]
    assert DEFAULT_MODEL in [known["name"] for known in document["known"]]


def test_show_gives_path_source_and_checksums(root: Path) -> None:
    document = json.loads(run(root, "show", "owner/tiny", "--json").stdout)
    assert document["path"].endswith("tiny.gguf")
    assert document["sha256"] == {"tiny.gguf": "00ff"}
    assert "hub:owner/tiny@abc" in run(root, "show", "owner/tiny").stdout


def test_show_of_a_model_that_is_not_here_is_status_3_and_names_those_that_are(root: Path) -> None:
    result = run(root, "show")
    assert result.exit_code == 3
    assert DEFAULT_MODEL in result.stderr
    assert "models here: owner/tiny" in result.stderr


def test_pull_of_a_model_that_is_here_fetches_nothing(root: Path) -> None:
    result = run(root, "pull", "owner/tiny", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["source"] == TINY.source


def test_pull_of_a_name_that_means_nothing_is_status_3(root: Path) -> None:
    result = run(root, "pull", "not a name")
    assert result.exit_code == 3
    assert "'not a name'" in result.stderr


def test_the_bar_takes_files_of_known_and_unknown_size(capsys: pytest.CaptureFixture[str]) -> None:
    with download_bar() as progress:
        progress("a", 1, 10)
        progress("b", 5, None)
        progress("a", 10, 10)
    assert capsys.readouterr().out == ""


def test_export_of_a_model_that_is_not_here_is_status_3(root: Path) -> None:
    result = run(root, "export", DEFAULT_MODEL, str(root / "out"))
    assert result.exit_code == 3
    assert not (root / "out").exists()
