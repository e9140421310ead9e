"""`prolepsis drift`: how proposers fare now against how they fared, on a running server."""

from typing import Annotated, Any

import typer

from prolepsis.cli.output import EPILOG, AsJson, command_group, print_json, print_table, stdout
from prolepsis.cli.servers import HERE, Key, Url, ask

app = command_group("See drift of acceptance by proposer and traffic class, and have it watched anew.")


@app.command(epilog=EPILOG)
def show(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """Show what is known of each proposer in each traffic class."""
    document = ask(url, key, "GET", "/admin/drift")
    if as_json:
        print_json(document)
    elif not document["enabled"]:
        stdout().print("drift is off here; serve --drift on watches for it", markup=False)
    else:
        _show(url, document["streams"])


@app.command(epilog=EPILOG)
def reset(
    proposer: Annotated[str, typer.Argument(help="as `drift show` names it")],
    traffic_class: Annotated[str, typer.Argument(metavar="TRAFFIC_CLASS", help="as `drift show` names it")],
    url: Url = HERE,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Forget what is known of one and learn anew: its traffic is another from now on, or an alarm is dealt with."""
    document = ask(url, key, "POST", "/admin/drift/reset", {"proposer": proposer, "traffic_class": traffic_class})
    if as_json:
        print_json(document)
    else:
        _show(url, [document])


def _show(title: str, streams: list[dict[str, Any]]) -> None:
    columns = ["proposer", "traffic_class", "status", "acceptance", "lately", "overestimated", "judged", "version"]
    rows = [
        [
            one["proposer"],
            one["traffic_class"],
            one["status"],
            _figure(one["acceptance"]),
            _figure(one["recent_acceptance"]),
            _figure(one["overestimated"]),
            str(one["num_judged"]),
            one["version"],
        ]
        for one in streams
    ]
    print_table(title, columns, rows)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
