"""`prolepsis show cost`: price books, and what a running server says of its requests."""

import json
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.cost.history import store_prices
from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.store.store import open_store
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.cli.main import app
from tests.control.cost.test_runtime import BODY, BOOK, Charging
from tests.control.store.databases import migrated_setting
from tests.server.conftest import served


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")
    (tmp_path / "prices.yaml").write_text(BOOK)
    return tmp_path


def ran(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_check_shows_what_an_hour_costs_or_all_that_is_wrong(here: Path) -> None:
    result = ran("store", "prices", "prices.yaml")
    assert result.exit_code == 0, result.output
    assert "3.6" in result.stdout
    assert "2628.00" in result.stdout
    assert json.loads(ran("store", "prices", "prices.yaml", "--json").stdout)["currency"] == "EUR"
    (here / "bad.yaml").write_text("currency: euro\nprices:\n- {name: a, per_device_hour: 0, power: 1}\n")
    result = ran("store", "prices", "bad.yaml", "--json")
    assert result.exit_code == 1
    found = [(one["line"], one["path"]) for one in json.loads(result.stdout)["findings"]]
    assert found == [(1, "currency"), (3, "prices[0].per_device_hour"), (3, "prices[0].power")]
    assert "EUR" in ran("store", "prices", "bad.yaml").stdout


def test_show_has_money_where_there_is_a_book(here: Path) -> None:
    for book in (None, PriceFile(here / "prices.yaml")):
        with served(Charging(), prices=book) as running:
            for _ in range(2):
                assert httpx2.post(f"{running.url}/v1/completions", json=BODY).status_code == 200
            result = ran("show", "cost", "--url", running.url)
            document = json.loads(ran("show", "cost", "--url", running.url, "--json").stdout)
        assert result.exit_code == 0, result.output
        assert ("EUR" in result.stdout) == (book is not None)
        assert (document["total"]["amount"] is not None) == (book is not None)
        for part in (
            "by route",
            "/v1/completions",
            "by proposer",
            "suffix",
            "100 ms",
            "12.5 ms",
            "draft_head",
            "1 GiB",
        ):
            assert part in result.stdout


def test_history_lists_the_books_that_were_used(here: Path) -> None:
    url = migrated_setting(here)
    store = open_store(url, Metrics().registry)
    assert store is not None
    with store.database.write() as connection:
        book = PriceFile(here / "prices.yaml").value
        store_prices(connection, book.full_version, json.dumps(book.content()))
    store.close()
    result = ran("store", "prices", "--store", url)
    assert result.exit_code == 0, result.output
    assert "a 3.6 EUR" in result.stdout
    document = json.loads(ran("store", "prices", "--store", url, "--json").stdout)
    assert document["books"][0]["version"] == book.full_version


def test_no_server_is_said_so() -> None:
    result = ran("show", "cost", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "no server answers" in result.stderr
