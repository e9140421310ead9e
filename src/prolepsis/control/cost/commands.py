"""What a running server's requests cost: `prolepsis show cost`; and price books."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from prolepsis.control.cost.device_time import DeviceCost
from prolepsis.control.cost.history import stored_periods, stored_prices
from prolepsis.control.cost.prices import HOURS_PER_MONTH, InvalidPrices, read_prices
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.core.terminal.documents import FINDINGS, print_reply
from prolepsis.core.terminal.output import FAILED, AsJson
from prolepsis.core.terminal.resource import Resource

_NEWEST = 50
_SPENT = (
    *("name=value", "requests=num_requests", "tokens=num_output_tokens", "device=total_device_s"),
    *("per token=device_s_per_token", "amount", "saved", "revenue"),
)
_DEVICE_TIME = (
    *("name=value", "prefill=device_s.prefill", "plain=device_s.plain", "verify=device_s.verify"),
    *("propose=device_s.propose", "host=device_s.host"),
)

_BOOKS = ("from (UTC)=taken_at", "version", "prices an hour=by_name")
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
    command="cost",
    columns={
        **{
            table: columns
            for path in ("by_route", "by_tenant", "by_rule", "by_proposer", "by_key", "by_tag")
            for table, columns in ((path, _SPENT), (f"{path}:device time", _DEVICE_TIME))
        },
        "periods": _PERIODS,
        "rollouts.groups": (
            *("rollout", "by", "value", "canary=num_canary", "control=num_control", "saved", "randomised"),
            *("saved by prediction=saved_by_prediction", "per token=device_s_per_token"),
            "without, by the control=control_device_s_per_token",
        ),
        "memory": (
            *("proposer", "weights=weights:bytes", "K/V=kv:bytes", "index=index:bytes", "total=total:bytes"),
            "amount_per_hour",
        ),
    },
)


def prices(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="a price book in YAML, to check")] = None,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """List the price books that were used, and what the device cost hour by hour, the newest first.

    With FILE: every error of a price book, or its prices; exit status 1 if it cannot be used.
    """
    if file is not None:
        _check(file, as_json=as_json)
        return
    with ready_database(store) as database, database.read() as connection:
        books, periods = stored_prices(connection, _NEWEST), stored_periods(connection, _NEWEST)
    contents = [{"version": book.version, "taken_at": book.taken_at, **json.loads(book.content)} for book in books]
    document = {
        "books": [{**content, "by_name": _names(content)} for content in contents],
        "periods": TypeAdapter(list[DeviceCost]).dump_python(periods),
    }
    print_reply(document, {"books": _BOOKS, "periods": _PERIODS}, as_json=as_json)


def _check(file: Path, *, as_json: bool) -> None:
    try:
        book = read_prices(file)
    except InvalidPrices as error:
        reply = {"file": file, "version": None, "findings": [finding.plain() for finding in error.findings]}
        print_reply(reply, {"findings": FINDINGS}, as_json=as_json)
        raise typer.Exit(FAILED) from None
    prices = [
        {"price": price.name, "region": price.region, "term": price.term, f"{book.currency}/hour": price.per_hour}
        | {f"{book.currency}/month": f"{HOURS_PER_MONTH * price.per_hour:.2f}"}
        for price in book.prices
    ]
    facts = {"file": file, "version": book.full_version}
    print_reply({**facts, **({"findings": [], **book.content()} if as_json else {"prices": prices})}, as_json=as_json)


def _names(content: dict[str, Any]) -> str:
    return ", ".join(
        f"{price['name']} {price['per_device_hour'] + sum(price['overheads'].values()):g} {content['currency']}"
        for price in content["prices"]
    )
