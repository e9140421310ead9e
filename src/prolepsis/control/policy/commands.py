"""`prolepsis policy`: the policy of a running server, its versions, and another one in its place."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.core.files import read_text
from prolepsis.core.terminal.resource import Act, Resource, parameter

PolicyPath = Annotated[Path, typer.Argument(metavar="FILE", help="policy in YAML")]


def _replacing(given: dict[str, Any], get: Callable[[str], Any]) -> dict[str, Any]:
    """Read the file, and expect the version in use now unless another one is named."""
    if "file" in given:
        given["text"] = read_text(given.pop("file"), "policy")
    if given["expect"] is None:
        given["expect"] = int(get("/admin/policy")["version"] or 0)
    return given


_EXPECT = typer.Option(min=0, metavar="VERSION", help="fail if another version is in use; default: the one in use now")
_REASON = typer.Option(help="recorded with the version and in the audit log")
_CHANGE = (
    parameter("expect", Annotated[int | None, _EXPECT], None),
    parameter("reason", Annotated[str, _REASON], ""),
)
_VERSION = typer.Argument(min=1, metavar="VERSION", help="as `policy show --versions` lists it")
_NOTE = "all servers on the store use it within a second"

VERSIONS = Resource(
    title="Versions",
    path="/admin/policy/versions",
    help="List the versions of the policy, the newest first, with author and reason.",
    columns={"versions": ("version", "time (UTC)=created_at", "author", "reason")},
    empty="The store has no version yet.",
    links={"version": "/console/policy/versions/{version}"},
    acts={
        "policy": Act(
            method="PUT",
            path="/admin/policy",
            command="apply",
            help="Store a policy as a new version; all servers on the store use it within a second.\n\n"
            "The server checks it first. A policy with an error is refused, and nothing changes.",
            parameters=(parameter("file", PolicyPath), *_CHANGE),
            prepare=_replacing,
            note=_NOTE,
            done="Version {reply.version} of the policy is in use.",
            then="/console/policy",
        ),
        "policy-rollback": Act(
            method="POST",
            path="/admin/policy/rollback",
            command="rollback",
            help="Use the text of an earlier version again, as a new version.",
            parameters=(parameter("to", Annotated[int, _VERSION]), *_CHANGE),
            prepare=_replacing,
            note=_NOTE,
            done="The text of version {to} is in use again.",
        ),
    },
)
