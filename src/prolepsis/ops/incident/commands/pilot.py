"""`prolepsis pilot`: speculate with a share of some traffic for some days, and see what that brings."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import unified_diff
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.control.policy import pilot
from prolepsis.control.policy.check import parse_policy
from prolepsis.control.rollout.machine import JUDGED
from prolepsis.control.traffic.commands import TRAFFIC
from prolepsis.control.verdict.commands import VERDICTS
from prolepsis.control.verdict.verdict import LITTLE
from prolepsis.control.web.drawing import interval
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import UNLISTED, UNSTATED
from prolepsis.core.files import read_text, write_output
from prolepsis.core.terminal.admin import Key, Url, ask
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.output import FAILED, AsJson, command_group, note, print_json
from prolepsis.ops.console.render import page_alone
from prolepsis.ops.incident.period import parse_time

_FIGURES = ("figure", "canary", "control", "change=change:share", "n=num_canary", "n of control=num_control")
_COMPARED = ("rollout", "share", "cost=cost:share", "n=num_canary", "n of control=num_control")
_COST = "cost of a million tokens (device s)"
_SHIPPED = "the shipped set"
_STATUS = {"pilot": ("rule", "phase", "verdict > rests_on", "requests=num_requests", "until")}
app = command_group("Speculate with a share of some traffic for some days, and see what it brings.")
Named = Annotated[str | None, typer.Option("--rule", metavar="NAME", help="this rule alone")]


@app.command()
def start(
    *,
    source: Annotated[Path, typer.Option("--from", metavar="FILE", help="of `prolepsis check`")] = Path("check.json"),
    route: Annotated[str | None, typer.Option(help="traffic of this route, in place of FILE")] = None,
    tenant: Annotated[str | None, typer.Option(help="traffic of this tenant, in place of FILE")] = None,
    default: Annotated[bool, typer.Option("--default", help="all that no rule matches, in place of FILE")] = False,
    measured: Annotated[bool, typer.Option("--measured", help="see `show traffic`, in place of FILE")] = False,
    rule: Annotated[str | None, typer.Option(help="the one of FILE with this name, or the name of the rule")] = None,
    share: Annotated[float, typer.Option(min=1, max=95, help="percent of these requests that speculate")] = 50.0,
    days: Annotated[float, typer.Option(min=0.01, max=90, help="then they get what they got before")] = 7.0,
    anyway: Annotated[bool, typer.Option("--anyway", help="also rules that match no recorded request")] = False,
    url: Url,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Put rules for traffic that is worth it into the policy, each with a rollout that ends by itself, and start them.

    The share speculates and the others stay plain, so that the two can be compared. A guardrail that shows harm ends it
    at once. What is done, and to how many of the last requests, is shown first.
    """
    match = {name: value for name, value in (("route", route), ("tenant", tenant)) if value is not None}
    made = partial(pilot.pilot_rule, share=share, days=days, now=datetime.now(UTC))
    found: dict[str, Mapping[str, Any]]
    if match or default:
        found = {rule or tenant or (route or "default").removeprefix("/v1/"): match}
    else:
        found = _measured(url, key, rule) if measured else _worth(source, rule)
    rules = [made(name, match) for name, match in found.items()]
    in_use = ask(url, key, "GET", "/admin/policy")
    new, shown = [each for each in rules if each["name"] not in in_use["rules"]], dict[str, Any]()
    if in_use["source"] == "file" and new:
        print("".join(map(pilot.rule_text, new)), end="")
        note(f"this server's policy is {in_use['name']}: put these lines first under `rules`, then run this again")
        raise typer.Exit(FAILED)
    if new:
        shown = _apply(new, url, key, anyway=anyway, as_json=as_json)
    started = []
    for row in ask(url, key, "GET", "/admin/rollouts")["rollouts"]:
        if row["rule"] in [each["name"] for each in rules] and row["phase"] in ("off", "rolled_back"):
            ask(url, key, "POST", f"/admin/rollouts/{row['id']}/start", {"reason": "pilot start"})
            started.append(row["rule"])
    if as_json:
        print_json({**shown, "started": started})
    else:
        note(f"started: {', '.join(started) or 'none'}; `prolepsis pilot status` says how it goes")


def _worth(file: Path, name: str | None) -> dict[str, Mapping[str, Any]]:
    """Return the matches of what a check found worth a pilot, by name."""
    try:
        document = json.loads(read_text(file, "from"))
        found = {str(row["name"]): row["match"] for row in document["pilot"] if name in (None, row["name"])}
        sentence, is_shipped = document["sentence"], document["prompts"] == _SHIPPED
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"--from {file} is not what `prolepsis check` writes", param="from") from None
    if not found:
        only = f" named {name}" if name else ""
        raise ConfigError(f"{file} has nothing{only} that is worth a pilot; it ends: {sentence}", param="from")
    if "all" in found and is_shipped:
        message = f"{file} is of {_SHIPPED} of prompts, which says nothing of your traffic; check your own, or --route"
        raise ConfigError(message, param="from")
    return found


def _measured(url: str, key: str | None, name: str | None) -> dict[str, Mapping[str, Any]]:
    """Return the matches of the domains and languages in which this server's drafts surely gain, by name."""
    found = dict[str, Mapping[str, Any]]()
    for row in ask(url, key, "GET", TRAFFIC.path)["parts"]:
        called, gain = f"{row['part']}-{row['value']}", row["gain"] or {"lower": None}
        is_listed = row["value"] not in (UNLISTED, UNSTATED)
        if is_listed and name in (None, called) and gain["lower"] is not None and gain["lower"] > LITTLE:
            found[called] = {row["part"]: row["value"]}
    if not found:
        where = f"none called {name}" if name else "none that the policy lists"
        message = f"of domains and languages, drafts surely save {LITTLE:.0%} in {where}"
        raise ConfigError(f"{message}: `prolepsis show traffic` has the figures", param="measured")
    return found


def _apply(rules: list[pilot.RuleText], url: str, key: str | None, *, anyway: bool, as_json: bool) -> dict[str, Any]:
    """Say what the rules match and change, and put them into the policy."""
    text, version = _stored(url, key)
    made, recent = pilot.with_rules(text, rules), ask(url, key, "GET", "/admin/requests?last=512")["requests"]
    counts = pilot.matched(parse_policy(made, "policy")[0], recent)
    if (idle := [each["name"] for each in rules if not counts[each["name"]]]) and not anyway:
        hint = "clients declare `domain` in `metadata`; --rule takes one rule alone, --anyway these too"
        raise ConfigError(f"none of the last {len(recent)} requests matches {', '.join(idle)}: {hint}")
    checked = ask(url, key, "POST", "/admin/policy/check", {"text": made})
    if checked["errors"]:
        raise ConfigError("; ".join(checked["errors"]))
    rows = [{"rule": each["name"], "matches": counts[each["name"]], "of_recorded": len(recent)} for each in rules]
    shown = {"pilot": rows, "changes": checked["changes"]}
    if not as_json:
        print_reply({"pilot": rows, "warnings": checked["warnings"]}, as_json=False)
        print("".join(unified_diff(text.splitlines(keepends=True), made.splitlines(keepends=True), "before", "after")))
    ask(url, key, "PUT", "/admin/policy", {"text": made, "expect": version, "reason": "pilot start"})
    return shown


def _stored(url: str, key: str | None) -> tuple[str, int]:
    """Return text and version of the policy in use; raises `InvalidParameter` where no store has it."""
    version = ask(url, key, "GET", "/admin/policy/versions")["in_use"] or 0
    return ask(url, key, "GET", f"/admin/policy/versions/{version}")["text"] if version else "", version


def _pilots(url: str, key: str | None, name: str | None) -> dict[str, tuple[Any, Any]]:
    """Return the pilot's rules in use, each with its rollout, by name; raises `ConfigError` where there are none."""
    content = ask(url, key, "GET", "/admin/policy")["content"] or {"rules": []}
    rollouts = {row["rule"]: row for row in ask(url, key, "GET", "/admin/rollouts")["rollouts"]}
    rules = {rule["name"]: rule for rule in content["rules"] if pilot.is_pilot(rule["name"]) and rule["rollout"]}
    found = {each: (rules[each], rollouts[each]) for each in rules if name in (None, each, each[len(pilot.PILOT) :])}
    if not found:
        named = f" {name}" if name else ""
        raise ConfigError(f"the policy in use has no pilot{named}; its pilots: {', '.join(rules) or 'none'}")
    return found


@app.command()
def status(*, rule: Named = None, url: Url, key: Key = None, as_json: AsJson = False) -> None:
    """Show for each rule of the pilot its verdict now, its requests so far, and when it ends."""
    rows = [
        {
            **{field: rollout[field] for field in ("rule", "phase", "verdict", "rests_on")},
            "num_requests": rollout["num_canary"] + rollout["num_control"],
            "until": of["match"].get("time", [{}])[0].get("until"),
        }
        for of, rollout in _pilots(url, key, rule).values()
    ]
    print_reply({"pilot": rows}, _STATUS, as_json=as_json)
    if not as_json and any(row["verdict"].startswith(("keep", "stop")) for row in rows):
        note("it is known: `prolepsis pilot stop` ends the pilot, with --keep its rules stay on")


@app.command()
def stop(
    *,
    rule: Named = None,
    keep: Annotated[bool, typer.Option("--keep", help="speculate with all its requests but a holdout of 5 %")] = False,
    reason: Annotated[str, typer.Option(help="recorded with the version of the policy")] = "pilot stop",
    url: Url,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """End the pilot: its requests stop speculating at once, and its rules leave the policy; or keep its rules."""
    pilots = _pilots(url, key, rule)
    for _, row in pilots.values():
        if row["phase"] in JUDGED and not keep:
            ask(url, key, "POST", f"/admin/rollouts/{row['id']}/rollback", {"reason": reason})
    text, version = _stored(url, key)
    instead = {name: pilot.kept_rule(name, of["match"]) if keep else None for name, (of, _) in pilots.items()}
    body = {"text": pilot.with_replaced(text, instead), "expect": version, "reason": reason}
    reply = ask(url, key, "PUT", "/admin/policy", body)
    print_reply({"kept" if keep else "ended": [*pilots], **reply}, as_json=as_json)


@app.command()
def report(
    *,
    url: Url,
    key: Key = None,
    since: Annotated[str, typer.Option(help="so long ago, such as 6h or 7d, or a time in ISO 8601")] = "7d",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write a page with pictures")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the verdict on each rule, what was compared in a period, the figures of the most, and what is not known."""
    start = parse_time(since, datetime.now(UTC), "since").astimezone(UTC)
    reply = ask(url, key, "GET", f"{VERDICTS.path}?since={start:%Y-%m-%dT%H:%M:%SZ}", timeout_s=120.0)
    if html is not None:
        page = page_alone("ops/incident/templates/pilot.html", place=interval, **reply)
        write_output(html, page.encode(), "html")
    first, *others = reply["reports"]
    shown = {"verdicts": reply["verdicts"], **({"compared": [*map(_compared, reply["reports"])]} if others else {})}
    shown |= {**first, "limits": [{"limit": text} for text in first["limits"]]}
    columns = {**VERDICTS.columns, "compared": _COMPARED, "figures": _FIGURES}
    columns["limits"] = ("what the evidence cannot say=limit",)
    print_reply(reply if as_json else shown, columns, as_json=as_json)


def _compared(of: Mapping[str, Any]) -> dict[str, Any]:
    """Return one line about a report."""
    [cost] = [figure for figure in of["figures"] if figure["figure"] == _COST]
    numbers = {name: cost[name] for name in ("num_canary", "num_control")}
    return {"rollout": of["rollout"], "share": of["share"], "cost": cost["change"], **numbers}
