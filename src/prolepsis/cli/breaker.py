"""`prolepsis breaker`: see and set the breakers of a running server."""

from typing import Annotated, Any

import typer

from prolepsis.cli.output import EPILOG, AsJson, command_group, note, print_json, print_table, warn
from prolepsis.cli.servers import HERE, Key, Url, ask

app = command_group("See and set the breakers of a running server, by proposer and traffic class of requests.")


@app.command("list", epilog=EPILOG)
def list_breakers(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """List the breakers with what was seen lately."""
    document = ask(url, key, "GET", "/admin/breakers")
    if as_json:
        print_json(document)
        return
    _show(url, document["breakers"])
    if not document["enabled"]:
        note("breakers are off there")


@app.command("set", epilog=EPILOG)
def set_breaker(  # noqa: PLR0917  # typer names its options after parameters
    proposer: Annotated[str, typer.Argument(help="as `breaker list` shows it")],
    traffic_class: Annotated[str, typer.Argument(metavar="TRAFFIC_CLASS", help="as `breaker list` shows it")],
    state: Annotated[str, typer.Argument(help="forced_open, forced_closed, metrics_only; closed: by itself again")],
    url: Url = HERE,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Set one by hand: it holds from the next step on, after a restart too, until it is set to closed."""
    document = ask(
        url, key, "PUT", "/admin/breakers", {"proposer": proposer, "traffic_class": traffic_class, "state": state}
    )
    if as_json:
        print_json(document)
        return
    _show(url, [document])
    if document["not_kept"]:
        warn(document["not_kept"])


def _show(title: str, breakers: list[dict[str, Any]]) -> None:
    rows = [
        [
            one["proposer"],
            one["traffic_class"],
            one["state"],
            _acceptance(one),
            f"{one['spent']:.4g} / {one['gained']:.4g}",
        ]
        for one in breakers
    ]
    print_table(title, ["proposer", "traffic_class", "state", "first tokens right", "tokens spent / gained"], rows)


def _acceptance(one: dict[str, Any]) -> str:
    return "-" if one["acceptance"] is None else f"{one['acceptance']:.2f} of {one['judged']:.0f}"
