"""`prolepsis correctness`: what a running server found where it decoded requests again without speculation."""

from typing import Any

import typer

from prolepsis.cli.output import FAILED, AsJson, print_facts, print_json, print_table, shown_time
from prolepsis.cli.servers import HERE, Key, Url, ask


def correctness(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """Show how many requests had the tokens of plain decoding; status 1 where one differs beyond rounding."""
    document = ask(url, key, "GET", "/admin/correctness")
    if as_json:
        print_json(document)
    else:
        _show(document)
    if document["outcomes"]["structural"]:
        raise typer.Exit(FAILED)


def _show(document: dict[str, Any]) -> None:
    rate = document["match_rate"]
    facts: list[tuple[str, object]] = [
        ("replayed", f"{100 * document['share']:g}% of finished requests" if document["enabled"] else "nothing"),
        ("match rate", None if rate is None else f"{100 * rate:.4g}%"),
        *((name.replace("_", " "), number) for name, number in document["outcomes"].items()),
        ("waiting", document["num_queued"]),
        ("dropped", sum(document["dropped"].values())),
        ("exactness", document["exactness"]),
    ]
    print_facts(facts)
    if document["differences"]:
        columns = ["time (UTC)", "request", "route", "mode", "position", "kind", "margin", "tolerance"]
        print_table("last differences", columns, [_row(one) for one in document["differences"]])


def _row(one: dict[str, Any]) -> list[str]:
    numbers = ["-" if one[name] is None else f"{one[name]:.4g}" for name in ("margin", "tolerance")]
    names = [one[name] for name in ("request_id", "route", "mode")]
    return [shown_time(one["at"]), *names, str(one["position"]), one["kind"], *numbers]
