"""Help, versions, exit statuses and the one line an error is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from prolepsis import __version__
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import (
    ConfigError,
    ContextTooLong,
    DeadlineExceeded,
    EngineDead,
    FetchError,
    InvalidParameter,
    MemoryPlanError,
    ModelLoadError,
    ModelNotFound,
    ProlepsisError,
    VocabularyMismatch,
)
from prolepsis.core.terminal.config import flag_name
from prolepsis.core.terminal.output import EXIT_STATUSES, exit_status
from prolepsis.server.cli.main import COMMANDS, app, load_command
from tests.paths import ROOT

README = ROOT / "README.md"
HEAVY = ("torch", "transformers", "fastapi", "uvicorn", "tokenizers", "numpy")


def test_help_has_every_command_on_a_line_of_one_screen() -> None:
    lines = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout.splitlines()
    for name, (_, _, text) in COMMANDS.items():
        assert any(line.split()[-len(text.split()) - 1 :] == [name, *text.split()] for line in lines), name
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_help_of_a_command_names_every_status() -> None:
    text = " ".join(CliRunner().invoke(app, ["doctor", "--help"]).stdout.split())
    for status in EXIT_STATUSES:
        assert f"{status} " in text


def test_help_of_serve_has_what_people_need_and_says_how_many_more_there_are() -> None:
    shown, whole = (re.findall(r"^  (-\S+)", _help_of_serve(flag), re.MULTILINE) for flag in ("--help", "--help-all"))
    assert len(shown) <= 25
    assert f"--help-all      show {len(whole) - len(shown)} more options" in _help_of_serve("--help")
    assert set(shown) < set(whole)


def _help_of_serve(flag: str) -> str:
    return CliRunner().invoke(app, ["serve", flag], env={"COLUMNS": "80"}).stdout


def test_the_readme_names_every_command() -> None:
    rows = re.findall(r"^\| (?!---).*", README.read_text().split("## Commands")[1].split("\n## ")[0], re.MULTILINE)
    named = {
        name for row in rows for span in re.findall(r"`([a-z].+?)`", row) for name in span.split(" ")[0].split(", ")
    }
    assert named == set(COMMANDS)


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.strip()) == (0, __version__)


def test_help_imports_nothing_heavy() -> None:
    every = [["--help"], *([name, "--help"] for name in COMMANDS)]
    program = (
        "import sys\nfrom prolepsis.server.cli.main import app\n"
        f"for arguments in {every!r}:\n"
        "    try:\n        app(arguments)\n    except SystemExit as end:\n        assert end.code == 0, end.code\n"
        f"    print('heavy:', *arguments, [m for m in {HEAVY!r} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    heavy = [line for line in done.stdout.splitlines() if line.startswith("heavy:")]
    assert heavy == [f"heavy: {' '.join(arguments)} []" for arguments in every]


def test_no_name_of_an_option_is_cut_in_a_narrow_terminal() -> None:
    text = _help_of_serve("--help-all")
    for section in (EngineConfig, ServerConfig):
        for name in section.model_fields:
            assert flag_name(name) in text.replace(",", " ").split()
    assert max(map(len, text.splitlines())) <= 80


def test_the_table_of_commands_and_the_modules_agree() -> None:
    for name in COMMANDS:
        command = load_command(name)
        assert command.help, name


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 2),
        (InvalidParameter("x"), 2),
        (ContextTooLong("x"), 2),
        (ModelNotFound("x"), 3),
        (ModelLoadError("x"), 3),
        (FetchError("x"), 3),
        (VocabularyMismatch("x"), 3),
        (MemoryPlanError("x"), 5),
        (DeadlineExceeded("x"), 1),
        (EngineDead("x"), 1),
        (ProlepsisError("x"), 1),
    ],
)
def test_each_error_has_a_documented_status(error: ProlepsisError, status: int) -> None:
    assert exit_status(error) == status
    assert status in EXIT_STATUSES


@pytest.mark.parametrize("arguments", [["nonsense"], ["serve", "--prot", "1"], ["generate", "hi", "--max-tokens", "x"]])
def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--proposer", "magic", "'magic' is not one of 'suffix', 'prompt_lookup', 'draft_model'"),
        ("--max-engines", "many", "'many'; allowed: a whole number"),
        ("--max-engines", "0", "'0'; allowed: greater than or equal to 1"),
    ],
)
def test_a_wrong_value_of_an_option_is_told_in_our_words(option: str, value: str, message: str) -> None:
    result = CliRunner().invoke(app, ["propose-server", option, value])
    assert f"Invalid value for '{option}': {message}" in " ".join(result.stderr.replace("│", " ").split())


def test_a_misspelt_variable_is_warned_of_once() -> None:
    words = ["doctor", "--only", "breaker", "--only", "kill-tried", "--only", "drill"]  # each reads settings
    result = CliRunner().invoke(app, words, env={"PROLEPSIS_THREDS": "2"})
    assert result.stderr.count("PROLEPSIS_THREDS has no effect; did you mean PROLEPSIS_THREADS?") == 1


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    assert "generate" in CliRunner().invoke(app, ["genrate"]).stderr


def test_an_error_is_one_line_on_stderr_without_a_traceback() -> None:
    result = CliRunner().invoke(app, ["serve", "--port", "70000"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == ["error: --port is '70000'; allowed: less than or equal to 65535"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_a_limit_of_memory_is_status_5_and_one_line(tmp_path: Path) -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({400 << 20},) * 2)"
    program = f"{limit}; from prolepsis.server.cli.main import app; app()"
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    command = [sys.executable, "-c", program, "generate", "hi", "--model", str(tmp_path / "model.gguf")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (5, ""), result.stderr
    assert "the limit of this process's address space (ulimit -v) has" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_failing_command_leaves_no_status_undocumented() -> None:
    assert set(EXIT_STATUSES) == {0, 1, 2, 3, 4, 5, 6, 130}
    assert isinstance(app, typer.Typer)
