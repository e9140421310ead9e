"""Flags are made from fields, and what a command gets is the merged configuration."""

from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.terminal.config import Settings, flag_name
from prolepsis.core.terminal.flags import configured, settings_here

received: list[tuple[Settings, str]] = []


@configured(EngineConfig, ServerConfig)
def command(settings: Settings, word: str = "none") -> None:
    """Do what the test asks."""
    received.append((settings, word))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    received.clear()
    monkeypatch.chdir(tmp_path)
    program = typer.Typer(pretty_exceptions_enable=False)
    program.command()(command)
    return program


def test_every_field_has_a_flag_with_its_description(app: typer.Typer) -> None:
    text = CliRunner().invoke(app, ["--help-all"], env={"COLUMNS": "4000", "TERMINAL_WIDTH": "4000"}).stdout
    for section in (EngineConfig, ServerConfig):
        for name, field in section.model_fields.items():
            assert flag_name(name) in text
            assert field.description
            assert field.description in text


def test_a_command_gets_the_merged_settings_and_its_own_flags(app: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "prolepsis.yaml").write_text("threads: 3\nhost: file.example\n")
    environment = {"PROLEPSIS_HOST": "env.example"}
    arguments = ["--no-prefix-cache", "--max-requests", "7", "--word", "hello"]
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == 0, result.output
    [(settings, word)] = received
    assert word == "hello"
    assert (settings.engine.threads, settings.engine.max_requests) == (3, 7)
    assert settings.engine.prefix_cache is False
    assert settings.server.host == "env.example"


def test_a_file_may_be_named_by_flag_or_environment(app: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("threads: 1\n")
    (tmp_path / "b.yaml").write_text("threads: 2\n")
    CliRunner().invoke(app, [], env={"PROLEPSIS_CONFIG": "a.yaml"})
    CliRunner().invoke(app, ["--config", "b.yaml"], env={"PROLEPSIS_CONFIG": "a.yaml"})
    assert [settings.engine.threads for settings, _ in received] == [1, 2]


def test_print_config_shows_values_and_origins_and_runs_nothing(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--print-config", "--port", "9000"], env={"PROLEPSIS_THREADS": "2"})
    assert result.exit_code == 0
    assert "port: 9000  # --port" in result.stdout
    assert "threads: 2  # PROLEPSIS_THREADS" in result.stdout
    assert yaml.safe_load(result.stdout)["kv_memory"] == EngineConfig().kv_memory
    assert received == []


def test_the_output_of_print_config_is_a_configuration_file(app: typer.Typer, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["--print-config", "--strict", "on", "--proposers", "none"]).stdout
    (tmp_path / "prolepsis.yaml").write_text(shown)
    CliRunner().invoke(app, [])
    [(settings, _)] = received
    assert (settings.engine.strict, settings.engine.proposers) == ("on", ())


def test_commands_of_few_flags_read_the_same_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROLEPSIS_MODEL", "from-environment")
    (tmp_path / "prolepsis.yaml").write_text("model: from-file\nmodel_dir: here\n")
    settings = settings_here(model_dir=None)
    assert (settings.engine.model, settings.engine.model_dir) == ("from-environment", Path("here"))
