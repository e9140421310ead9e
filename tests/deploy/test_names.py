"""Every command, option, variable, address and series that the files of `deploy` name exists."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from fastapi import FastAPI
from typer.core import TyperGroup

from prolepsis.core.config import ServerConfig
from prolepsis.core.terminal.config import NOT_FIELDS, environment_name, field_names
from prolepsis.server.cli.main import load_command
from tests.core.telemetry.servers import server_with_everything
from tests.deploy.written import Written, image_variables, written_files

FILES = written_files()
RAY_DASHBOARD, PROPOSE_SERVER = "8265", "8600"
"""Where KubeRay reaches Ray, and engines reach a propose server."""


def unknown_options(words: Sequence[str]) -> list[str]:
    """Return the options among the words of a command that it does not have."""
    command, rest = load_command(words[0]), list(words[1:])
    if isinstance(command, TyperGroup):
        command = command.commands[rest.pop(0)]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]


def test_the_check_sees_an_option_that_is_gone() -> None:
    assert unknown_options(["serve", "--prot", "8000", "--port=1"]) == ["--prot"]


def test_every_option_of_a_command_exists() -> None:
    commands = [(one.path.name, words) for one in FILES for words in one.commands()]
    assert len(commands) > 5
    assert [(name, unknown) for name, words in commands if (unknown := unknown_options(words))] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.name)
def test_every_variable_is_a_setting(file: Written) -> None:
    known = {environment_name(name) for name in field_names()} | set(NOT_FIELDS)
    assert file.names(r"\bPROLEPSIS_[A-Z_]+") <= known


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """Return the paths that are open without a key, and the series, of a server with everything."""
    folder: Path = tmp_path_factory.mktemp("server")
    with server_with_everything(folder) as (application, metrics):
        return open_paths_of(application), set(metrics.registry.families)


def open_paths_of(application: FastAPI) -> set[str]:
    paths = application.openapi()["paths"]
    return {
        path for path, of in paths.items() if "get" in of and (not of["get"]["security"] or {} in of["get"]["security"])
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.name)
def test_every_probe_asks_a_route_that_needs_no_key(file: Written, server: tuple[set[str], set[str]]) -> None:
    open_paths, _ = server
    assert file.names(r"/health/\w+") <= open_paths


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.name)
def test_every_series_is_exported(file: Written, server: tuple[set[str], set[str]]) -> None:
    _, families = server
    assert file.names(r"\bprolepsis_\w+") <= families


def test_the_port_is_the_servers_own() -> None:
    port = str(ServerConfig().port)
    assert image_variables()["PROLEPSIS_PORT"] == port
    given = {
        found
        for one in FILES
        for found in re.findall(r"(?:prolepsis|127\.0\.0\.1|containerPort|EXPOSE|port): ?(8\d\d\d)\b", one.text)
    }
    assert given == {port, RAY_DASHBOARD, PROPOSE_SERVER}
