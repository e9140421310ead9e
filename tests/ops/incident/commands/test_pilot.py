"""`prolepsis pilot report` on a running server: what a person reads, what a program gets, and the page."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.store import records
from prolepsis.control.store.store import Store
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from tests.control.cost.test_pilot import BEGAN, changed, traffic
from tests.control.cost.test_runtime import BOOK
from tests.server.conftest import served
from tests.server.fakes import FakeEngine


def pilot(*words: str) -> Result:
    return CliRunner().invoke(app, ["pilot", "report", *words])


def test_a_report_is_text_json_and_a_page(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")
    (tmp_path / "prices.yaml").write_text(BOOK)
    start = time.time() - 86400.0
    with store.database.write() as connection:
        rows = [changed(one, ended_at=start + (one.row["ended_at"] - BEGAN) / 60.0) for one in traffic(300)]  # type: ignore[operator]
        records.add(connection, rows)
    with served(FakeEngine(), store=store, prices=PriceFile(tmp_path / "prices.yaml")) as running:
        text = pilot("--url", running.url, "--html", str(tmp_path / "pilot.html"))
        document = json.loads(pilot("--url", running.url, "--since", "2d", "--json").stdout)["report"]
        none = pilot("--url", running.url, "--since", "1m")
        wrong = pilot("--url", running.url, "--since", "lately")
        nowhere = pilot("--url", running.url, "--html", str(tmp_path / "none" / "pilot.html"))
    assert text.exit_code == 0, text.output
    for part in ("end to end, 95 % (s)", "cost of a million tokens (EUR)", "what the evidence cannot say", "Hardware:"):
        assert part in text.stdout
    change = next(one["change"] for one in document["figures"] if one["figure"] == "end to end, median (s)")
    assert change["lower"] < -0.3 < change["upper"]
    assert f"{100 * change['estimate']:.4g}%" in text.stdout
    page = (tmp_path / "pilot.html").read_text()
    assert page.count('<svg class="interval"') == 5, "none of acceptance, nor of a percentile of few"
    assert "What the evidence cannot say" in page
    assert all(limit in page.replace("&#39;", "'") for limit in document["limits"])
    assert "src=" not in page, "it needs no other file"
    assert "No request was compared" in none.stdout
    assert (wrong.exit_code, nowhere.exit_code) == (2, 2)
    assert "pilot.html cannot be written: No such file" in " ".join(nowhere.stderr.split())
    assert "--since is 'lately'" in wrong.stderr
