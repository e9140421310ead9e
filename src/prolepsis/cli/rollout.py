"""`prolepsis rollout`: see and steer the rollouts of a running server."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from prolepsis.cli.output import EPILOG, AsJson, command_group, print_facts, print_json, print_table, shown_time
from prolepsis.cli.servers import HERE, Key, Url, ask

app = command_group("See and steer the rollouts of a running server.")

RolloutId = Annotated[str, typer.Argument(metavar="ID", help="as `rollout list` shows it")]
Why = Annotated[str, typer.Option("--reason", help="stands in the event")]


@app.command("list", epilog=EPILOG)
def list_rollouts(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """List the rollouts of the policy in use."""
    document = _ask(url, key, "GET", "")
    if as_json:
        print_json(document)
        return
    rows = [
        [one["id"], one["phase"], one["stage"], f"{100 * one['share']:g}%", _counts(one), _outcome(one["verdict"])]
        for one in document["rollouts"]
    ]
    print_table(url, ["id", "phase", "stage", "share", "canary / control", "verdict"], rows)


@app.command(epilog=EPILOG)
def show(rollout_id: RolloutId, url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """Show one rollout: where it stands, what its guardrails say, what happened to it."""
    document = _ask(url, key, "GET", f"/{quote(rollout_id, safe='')}")
    if as_json:
        print_json(document)
        return
    _show_facts(document)
    guardrails = (document["verdict"] or {}).get("guardrails", [])
    if guardrails:
        columns = ["guardrail", "", "estimate", "between", "allowed", "canary / control"]
        print_table("guardrails", columns, [_guardrail_row(one) for one in guardrails])
    rows = [[shown_time(one["at"]), one["kind"], one["stage"], one["reason"]] for one in document["events"]]
    print_table("events", ["time (UTC)", "what", "stage", "why"], rows)


@app.command(epilog=EPILOG)
def start(rollout_id: RolloutId, url: Url = HERE, key: Key = None, reason: Why = "", as_json: AsJson = False) -> None:
    """Start a rollout, or start again what was rolled back."""
    _do("start", rollout_id, url, key, reason, as_json=as_json)


@app.command(epilog=EPILOG)
def hold(rollout_id: RolloutId, url: Url = HERE, key: Key = None, reason: Why = "", as_json: AsJson = False) -> None:
    """Stop the stage's clock and all promotion; harm still rolls back."""
    _do("hold", rollout_id, url, key, reason, as_json=as_json)


@app.command(epilog=EPILOG)
def resume(rollout_id: RolloutId, url: Url = HERE, key: Key = None, reason: Why = "", as_json: AsJson = False) -> None:
    """Go on with what is held."""
    _do("resume", rollout_id, url, key, reason, as_json=as_json)


@app.command(epilog=EPILOG)
def promote(rollout_id: RolloutId, url: Url = HERE, key: Key = None, reason: Why = "", as_json: AsJson = False) -> None:
    """Go to the next stage now, whatever the verdict."""
    _do("promote", rollout_id, url, key, reason, as_json=as_json)


@app.command("roll-back", epilog=EPILOG)
def roll_back(
    rollout_id: RolloutId, url: Url = HERE, key: Key = None, reason: Why = "", as_json: AsJson = False
) -> None:
    """Take everything back: new requests at once, those in flight with their next step."""
    _do("roll-back", rollout_id, url, key, reason, as_json=as_json)


def _do(what: str, rollout_id: str, url: str, key: str | None, reason: str, *, as_json: bool) -> None:
    document = _ask(url, key, "POST", f"/{quote(rollout_id, safe='')}/{what}", {"reason": reason})
    if as_json:
        print_json(document)
    else:
        _show_facts(document)


def _ask(url: str, key: str | None, method: str, path: str, body: dict[str, str] | None = None) -> Any:
    return ask(url, key, method, f"/admin/rollouts{path}", body)


def _show_facts(one: dict[str, Any]) -> None:
    names = ("id", "rule", "policy_version", "phase", "stage", "run")
    facts: list[tuple[str, object]] = [(name, one[name]) for name in names]
    facts += [("share", f"{100 * one['share']:g}%"), ("control", f"{100 * one['control_share']:g}%")]
    print_facts([*facts, ("requests", _counts(one)), ("verdict", _outcome(one["verdict"]))])


def _guardrail_row(one: dict[str, Any]) -> list[str]:
    outcome = one["outcome"] + (" (dry run)" if one["dry_run"] else "")
    between = f"{one['lower']:.4g} .. {one['upper']:.4g}"
    return [one["name"], outcome, f"{one['estimate']:.4g}", between, f"{one['allowed']:.4g}", _counts(one)]


def _counts(one: dict[str, Any]) -> str:
    return f"{one['num_canary']} / {one['num_control']}"


def _outcome(verdict: dict[str, Any] | None) -> str:
    return "-" if verdict is None else f"{verdict['outcome']}: {verdict['reason'].replace('_', ' ')}"
