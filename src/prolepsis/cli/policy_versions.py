"""`prolepsis plan apply|history|show|rollback`: the policy that a running server and its replicas have in the store."""

from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.cli.output import AsJson, note, print_facts, print_json, print_table, shown_time, warn
from prolepsis.cli.servers import HERE, Key, Url, ask
from prolepsis.core.yaml_document import read_text

Expect = Annotated[
    int | None,
    typer.Option(min=0, metavar="VERSION", help="refuse where another version is in use; default: the one in use now"),
]
Why = Annotated[str, typer.Option("--reason", help="stands in the version and in the audit log")]


def apply(  # noqa: PLR0917  # typer names its options after parameters
    file: Annotated[Path, typer.Argument(metavar="FILE", help="policy in YAML")],
    expect: Expect = None,
    reason: Why = "",
    url: Url = HERE,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Store a policy as a new version; all servers on that store use it within a second.

    It is checked first: one with an error is refused, and nothing changes.
    """
    text = read_text(file, "policy")
    over = _over(url, key, expect)
    changed = ask(url, key, "PUT", "/admin/policy", {"text": text, "expect": over, "reason": reason})
    _show_changed(changed, over, as_json=as_json)


def rollback(  # noqa: PLR0917  # typer names its options after parameters
    to: Annotated[int, typer.Argument(min=1, metavar="VERSION", help="as `plan history` shows it")],
    expect: Expect = None,
    reason: Why = "",
    url: Url = HERE,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Put an earlier version's text in use again, as a new version."""
    over = _over(url, key, expect)
    changed = ask(url, key, "POST", "/admin/policy/rollback", {"to": to, "expect": over, "reason": reason})
    _show_changed(changed, over, as_json=as_json)


def history(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """List the versions of the policy, the newest first: who, when, why."""
    document = ask(url, key, "GET", "/admin/policy/versions")
    if as_json:
        print_json(document)
        return
    in_use = document["in_use"]
    rows = [
        [
            str(one["version"]),
            "in use" if one["version"] == in_use else "",
            shown_time(one["created_at"]),
            one["author"],
            one["reason"],
        ]
        for one in document["versions"]
    ]
    print_table(url, ["version", "", "time (UTC)", "by", "why"], rows)


def show(
    version: Annotated[int | None, typer.Argument(min=1, metavar="VERSION", help="default: what is in use")] = None,
    url: Url = HERE,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Print the text of a version; without one, say what the server has in use, and from where."""
    if version is not None:
        document = ask(url, key, "GET", f"/admin/policy/versions/{version}")
        if as_json:
            print_json(document)
        else:
            print(document["text"], end="")
        return
    document = ask(url, key, "GET", "/admin/policy")
    if as_json:
        print_json(document)
        return
    facts = {**document, "rules": ", ".join(document["rules"]) or None}
    print_facts(list(facts.items()))


def _over(url: str, key: str | None, expect: int | None) -> int:
    """Return the version to replace: without one that is expected, the one in use now."""
    if expect is not None:
        return expect
    return int(ask(url, key, "GET", "/admin/policy")["version"] or 0)


def _show_changed(changed: dict[str, Any], over: int, *, as_json: bool) -> None:
    if as_json:
        print_json(changed)
        return
    print_facts([("version", changed["version"]), ("in place of", over), ("policy", changed["policy_version"])])
    for warning in changed["warnings"]:
        warn(warning)
    note("servers on this store use it within a second")
