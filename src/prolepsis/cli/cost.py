"""`prolepsis cost`: price books, and what a running server's requests cost."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.cli.output import (
    EPILOG,
    FAILED,
    AsJson,
    command_group,
    note,
    print_facts,
    print_json,
    print_table,
    shown_time,
)
from prolepsis.cli.servers import HERE, Key, Url, ask
from prolepsis.cli.store import StoreOption, ready_database
from prolepsis.cost import price_history as stored_prices
from prolepsis.cost.prices import HOURS_PER_MONTH, InvalidPrices, read_prices

app = command_group("See what requests cost and what speculation saves; check price books.")

_NEWEST = 50


@app.command(epilog=EPILOG)
def show(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """Show device seconds, money where there are prices, savings with their bounds, memory and a monthly forecast."""
    document = ask(url, key, "GET", "/admin/cost")
    if as_json:
        print_json(document)
        return
    price = document["price"]
    if price:
        hour = f"{price['per_hour']:g} {price['currency']} an hour"
        print_facts([("price", f"{price['name']} ({price['term']}), {hour}"), ("price book", price["version"])])
    else:
        note("the server has no price book (serve --prices): device seconds only")
    currency = price["currency"] if price else ""
    rows = [_spent(name, one, currency) for name, one in _sums(document)]
    print_table("since the server started", ["of", "requests", "tokens", "device s", "ms/token", "amount"], rows)
    print_table("where the time goes", ["of", "prefill", "plain", "verify", "propose", "host"], _kinds(document))
    for rollout in document["rollouts"]:
        _show_rollout(rollout)
    _show_memory(document["memory"], currency)
    _show_forecast(document["forecast"], currency)


@app.command(epilog=EPILOG)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="price book in YAML")], as_json: AsJson = False
) -> None:
    """Say everything that is wrong with a price book, or what an hour costs by it; status 1 where it cannot be used."""
    try:
        book = read_prices(file)
    except InvalidPrices as error:
        _show_findings(file, error, as_json=as_json)
        raise typer.Exit(FAILED) from None
    if as_json:
        print_json({"file": file, "version": book.full_version, "findings": [], **book.content()})
        return
    rows = [
        [one.name, one.region or "-", one.term, f"{one.per_hour:g}", f"{HOURS_PER_MONTH * one.per_hour:.2f}"]
        for one in book.prices
    ]
    print_table(str(file), ["price", "region", "term", f"{book.currency}/hour", f"{book.currency}/month"], rows)
    print_facts([("version", book.full_version)])


@app.command(epilog=EPILOG)
def history(store: StoreOption = None, as_json: AsJson = False) -> None:
    """List the price books that were in use, the newest first."""
    with ready_database(store) as database, database.read() as connection:
        books = stored_prices.history(connection, _NEWEST)
    if as_json:
        rows = [{"version": one.version, "taken_at": one.taken_at, **json.loads(one.content)} for one in books]
        print_json({"books": rows})
        return
    shown = [[shown_time(one.taken_at), one.version, _names(json.loads(one.content))] for one in books]
    print_table("price books", ["from (UTC)", "version", "prices an hour"], shown)


def _show_findings(file: Path, error: InvalidPrices, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": file, "version": None, "findings": [one.plain() for one in error.findings]})
        return
    rows = [[str(one.line or ""), one.where, one.message] for one in error.findings]
    print_table(str(file), ["line", "where", "what"], rows)


def _sums(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return every sum with its name."""
    named = [("all", document["total"])]
    for dimension in ("route", "tenant", "proposer"):
        named += [(f"{dimension} {one['value']}", one) for one in document[f"by_{dimension}"]]
    return named


def _spent(name: str, one: dict[str, Any], currency: str) -> list[str]:
    per_token = one["device_s_per_token"]
    amount = "-" if one["amount"] is None else f"{one['amount']:.4f} {currency}"
    ms = "-" if per_token is None else f"{1000 * per_token:.2f}"
    return [name, str(one["num_requests"]), str(one["num_output_tokens"]), f"{one['total_device_s']:.2f}", ms, amount]


def _kinds(document: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, one in _sums(document):
        total = one["total_device_s"] or 1.0
        rows.append([name, *(f"{100 * seconds / total:.1f}%" for seconds in one["device_s"].values())])
    return rows


def _show_rollout(rollout: dict[str, Any]) -> None:
    rows = [
        [
            f"{one['by']} {one['value']}".strip(),
            f"{one['num_speculating']} / {one['num_control']}",
            _ms(one["device_s_per_token"]),
            _ms(one["control_device_s_per_token"]),
            _saving(one["saved"]),
            _saving(one["saved_by_prediction"]),
        ]
        for one in rollout["groups"]
    ]
    columns = ["of", "speculating / control", "ms/token", "control", "saved", "saved by prediction"]
    print_table(f"{rollout['rollout']}, {100 * rollout['share']:g}% speculate", columns, rows)
    if any(not one["randomised"] for one in rollout["groups"]):
        note("by proposer nothing is drawn by chance: requests that it drafted for are easier than the control's")


def _show_memory(memory: list[dict[str, Any]], currency: str) -> None:
    rows = [
        [one["proposer"], *(f"{one[kind] / 2**20:.1f}" for kind in ("weights", "kv", "index", "total")), _hourly(one)]
        for one in memory
        if one["total"]
    ]
    if rows:
        columns = ["proposer", "weights", "K/V", "index", "total", f"{currency or 'amount'}/hour"]
        print_table("memory beside the model, MiB", columns, rows)


def _show_forecast(forecast: dict[str, Any] | None, currency: str) -> None:
    if forecast is None:
        note("a forecast needs a minute of serving")
        return
    facts: list[tuple[str, object]] = [
        ("device hours a month", f"{forecast['device_hours']:.1f} (busy {100 * forecast['busy']:.1f}%)"),
        ("tokens a month", f"{forecast['num_output_tokens']:.3g}"),
        ("saved device hours", f"{forecast['saved_device_hours']:.1f}"),
    ]
    if forecast["amount_of_use"] is not None:
        facts += [
            ("amount of use", f"{forecast['amount_of_use']:.2f} {currency}"),
            ("amount of the device", f"{forecast['amount_of_device']:.2f} {currency}"),
            ("saved amount", f"{forecast['saved_amount']:.2f} {currency}"),
        ]
    print_facts([*facts, ("assumed", forecast["assumes"])])


def _saving(one: dict[str, Any]) -> str:
    if one["estimate"] is None:
        return "-"
    bounds = "" if one["upper"] is None else f" ({_percent(one['lower'])} to {_percent(one['upper'])})"
    return f"{_percent(one['estimate'])}{bounds}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.1f}%"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


def _hourly(one: dict[str, Any]) -> str:
    return "-" if one["amount_per_hour"] is None else f"{one['amount_per_hour']:.5f}"


def _names(content: dict[str, Any]) -> str:
    return ", ".join(
        f"{one['name']} {one['per_device_hour'] + sum(one['overheads'].values()):g} {content['currency']}"
        for one in content["prices"]
    )
