"""`prolepsis doctor`: whether a machine, its settings and its server are ready, and what to do where they are not."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import Key, ServerUrl, server_in_place
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.output import FAILED, OK, UNPROVEN, AsJson, stdout
from prolepsis.ops.incident.commands.incident import PrometheusUrl

LEVELS = ("must", "should", "could")
_COLUMNS = dict.fromkeys(LEVELS, ("state", "check=id", "what", "finding"))
_TO_DO = {"to_do": ("level", "check=id", "why", "how to mend it=fix")}


def doctor(
    *,
    url: ServerUrl = None,
    key: Key = None,
    prometheus: PrometheusUrl = None,
    backup: Annotated[Path | None, typer.Option(help="backup of the store, or the folder with all backups")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help="only this check; may be repeated")] = None,
    as_json: AsJson = False,
) -> None:
    """Check readiness. Exit status 1 if a check fails that must pass, 6 if one of them cannot be told."""
    from prolepsis.lab.doctor.checks import Facts, all_checks

    checks = {check.id: check for check in all_checks()}
    if unknown := {*(only or ())} - checks.keys():
        raise ConfigError(f"only is {', '.join(unknown)}; allowed: {', '.join(checks)}", param="only")
    facts = Facts(url=server_in_place(url, None, ""), key=key, prometheus_url=prometheus, backup=backup)
    results = sorted((checks[name].examined(facts) for name in only or checks), key=lambda result: result["state"])
    rows = {level: [result for result in results if result["level"] == level] for level in LEVELS}
    counts = {level: Counter(result["state"] for result in of_level) for level, of_level in rows.items()}
    to_do = [result for of_level in rows.values() for result in of_level if result["state"] == "fail"]
    print_reply({"counts": counts, **rows, "to_do": to_do}, _COLUMNS | _TO_DO, as_json=as_json)
    verdict = "go on: {pass} must pass, {unknown} unknown".format_map(must := counts["must"])
    if must["fail"]:
        verdict = f"do not: {must['fail']} must fail; first {{id}} ({{finding}}): {{fix}}".format_map(to_do[0])
    if not as_json:
        stdout().print(verdict, soft_wrap=True, markup=False)
    raise typer.Exit(FAILED if counts["must"]["fail"] else UNPROVEN if counts["must"]["unknown"] else OK)
