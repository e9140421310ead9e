"""`prolepsis cost`: price books, and what a running server's requests cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from prolepsis.control.cost.device_time import DeviceCost
from prolepsis.control.cost.history import stored_periods, stored_prices
from prolepsis.control.cost.prices import HOURS_PER_MONTH, InvalidPrices, read_prices
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.core.terminal.documents import FINDINGS, print_document, print_reply
from prolepsis.core.terminal.output import (
    EPILOG,
    FAILED,
    AsJson,
    command_group,
    print_facts,
    print_json,
    print_table,
)
from prolepsis.core.terminal.resource import Resource, add_commands

app = command_group("Show what requests cost and what speculation saves; check price books.")

_NEWEST = 50
_SPENT = (
    *("name=value", "requests=num_requests", "tokens=num_output_tokens", "device=total_device_s"),
    *("per token=device_s_per_token", "amount"),
)
_DEVICE_TIME = (
    *("name=value", "prefill=device_s.prefill", "plain=device_s.plain", "verify=device_s.verify"),
    *("propose=device_s.propose", "host=device_s.host"),
)

_BOOKS = ("from (UTC)=taken_at", "version", "prices an hour=prices")
_PERIODS = (
    *("from (UTC)=started_at", "held=held_s", "used=used_s", "tokens=num_output_tokens", "currency"),
    *(
        "paid=amount_paid",
        "used=amount_used",
        "million tokens: paid=paid_per_million_tokens",
        "used=used_per_million_tokens",
    ),
)
COST = Resource(
    title="Cost",
    path="/admin/cost",
    help="Show device seconds, money if there are prices, savings with their bounds, memory and a monthly forecast.",
    command="show",
    columns={
        **{
            table: columns
            for path in ("by_route", "by_tenant", "by_rule", "by_proposer")
            for table, columns in ((path, _SPENT), (f"{path}:device time", _DEVICE_TIME))
        },
        "periods": _PERIODS,
        "rollouts.groups": (
            *("rollout", "by", "value", "speculating=num_speculating", "control=num_control", "saved", "randomised"),
            *("saved by prediction=saved_by_prediction", "per token=device_s_per_token"),
            "without, by the control=control_device_s_per_token",
        ),
        "memory": (
            *("proposer", "weights=weights:bytes", "K/V=kv:bytes", "index=index:bytes", "total=total:bytes"),
            "amount_per_hour",
        ),
    },
)
add_commands(app, COST)


@app.command(epilog=EPILOG)
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="price book in YAML")], as_json: AsJson = False
) -> None:
    """Show every error of a price book, or its prices; exit status 1 if it cannot be used."""
    try:
        book = read_prices(file)
    except InvalidPrices as error:
        reply = {"file": file, "version": None, "findings": [finding.plain() for finding in error.findings]}
        print_reply(reply, {"findings": FINDINGS}, as_json=as_json)
        raise typer.Exit(FAILED) from None
    if as_json:
        print_json({"file": file, "version": book.full_version, "findings": [], **book.content()})
        return
    rows = [
        [price.name, price.region or "-", price.term, f"{price.per_hour:g}", f"{HOURS_PER_MONTH * price.per_hour:.2f}"]
        for price in book.prices
    ]
    print_table(str(file), ["price", "region", "term", f"{book.currency}/hour", f"{book.currency}/month"], rows)
    print_facts([("version", book.full_version)])


@app.command(epilog=EPILOG)
def history(store: StoreOption = None, as_json: AsJson = False) -> None:
    """List the price books that were used, and what the device cost hour by hour, the newest first."""
    with ready_database(store) as database, database.read() as connection:
        books, periods = stored_prices(connection, _NEWEST), stored_periods(connection, _NEWEST)
    contents = [(book, json.loads(book.content)) for book in books]
    if as_json:
        rows = [{"version": book.version, "taken_at": book.taken_at, **content} for book, content in contents]
        print_json({"books": rows, "periods": [asdict(period) for period in periods]})
        return
    listed = [
        {"taken_at": book.taken_at, "version": book.version, "prices": _names(content)} for book, content in contents
    ]
    shown = TypeAdapter(list[DeviceCost]).dump_python(periods)
    print_document({"price_books": listed, "device": shown}, {"price_books": _BOOKS, "device": _PERIODS})


def _names(content: dict[str, Any]) -> str:
    return ", ".join(
        f"{price['name']} {price['per_device_hour'] + sum(price['overheads'].values()):g} {content['currency']}"
        for price in content["prices"]
    )
