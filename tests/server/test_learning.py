"""What learning needs of a machine: the folder of heads, and the settings of a process that trains."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.control.store.store import unrecorded
from prolepsis.control.web.context import Context
from prolepsis.core.audit_event import discard
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.learning import LearningRun, report_folder
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.terminal.config import load_settings
from prolepsis.server.learning import start_run, variables_of
from tests.fake_client import INFO, FakeEngineClient


def context_of(folder: Path, **server: object) -> Context:
    engine = EngineConfig(model=str(folder / "tiny"), threads=1, proposers=("suffix", "draft_head"))
    return Context(
        config=ServerConfig.model_validate({"store": f"sqlite:///{folder}/store.sqlite", **server}),
        engine=engine,
        client=FakeEngineClient(lambda request: (), INFO),
        metrics=Metrics(),
        store=unrecorded(),
        emit=discard,
    )


def test_the_process_has_the_settings_of_the_server_whatever_gave_them(tmp_path: Path) -> None:
    context = context_of(tmp_path, audit_key=tmp_path / "key.pem")
    stale = {"PROLEPSIS_MODEL": "other", "PROLEPSIS_STORE": "none", "PROLEPSIS_API_KEY": "k", "PATH": "/bin"}
    variables = variables_of(context, tmp_path / "run.json", stale)
    settings = load_settings({}, variables, Path(variables["PROLEPSIS_CONFIG"]))
    assert settings.engine == context.engine
    assert (settings.server.store, settings.server.audit_key) == (context.config.store, tmp_path / "key.pem")
    assert (variables["PROLEPSIS_API_KEY"], variables["PATH"]) == ("k", "/bin")


def test_the_password_of_the_store_is_in_no_file(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    context = replace(context, config=ServerConfig(store="postgresql://ann:secret@host/db"))
    variables = variables_of(context, tmp_path / "run.json", {})
    assert "secret" in variables["PROLEPSIS_STORE"]
    assert "secret" not in (tmp_path / "run.json").read_text()
    assert json.loads((tmp_path / "run.json").read_text())["threads"] == 1


def test_a_process_says_in_a_file_why_it_cannot_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path / "data"))
    process = start_run(context_of(tmp_path), LearningRun(run_id="code-1", rule="code"))
    assert process.wait(60.0) != 0
    assert "there is no store at sqlite:///" in (tmp_path / "data" / "learning/reports/code-1/output.log").read_text()


def test_reports_of_the_newest_runs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    for number in range(25):
        os.utime(report_folder(f"code-{number}"), (number, number))
    assert {folder.name for folder in report_folder("code-5").parent.iterdir()} == {f"code-{i}" for i in range(5, 25)}
    report_folder("new")
    assert {folder.name for folder in (tmp_path / "learning" / "reports").iterdir()} >= {"new", "code-5", "code-24"}
