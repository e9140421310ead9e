"""`prolepsis audit`: verify, show, export and replay the audit log of a store, of an export or of a running server."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from prolepsis.control.audit import chain
from prolepsis.control.audit.bundle import is_replayable
from prolepsis.control.audit.commands.bundle import NOT_KEPT, OpenWith, PassphraseFile, bundle, read_bundle_file
from prolepsis.control.audit.commands.export import export
from prolepsis.control.audit.commands.log import opened_log
from prolepsis.control.audit.commands.verify import verify
from prolepsis.control.audit.entry import SERVED, AuditEntry
from prolepsis.control.audit.lookup import find_request
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.stored_text import storable
from prolepsis.core.terminal.admin import Key, ServerUrl, ask, server_in_place
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import FAILED, OK, UNPROVEN, AsJson, command_group, print_error

_RECORD = (
    *("ended_at", "answer_id", "x-request-id=http_request_id", "trace_id", "tenant", "route", "terminal", "mode"),
    *("reason", "seed", "policy_version", "tokens=num_output_tokens"),
)
_ENTRIES = ("seq", "at", "actor=details.actor", "action", "subject=details.subject", "tenant=details.tenant")
_DIFFERENCES = ("sample", "position", "kind", "margin", "tolerance")
_REPLAYED = {
    "differences": _DIFFERENCES,
    "prompts": ("entry=seq", "request_id", "outcome", "tokens=num_tokens", "reason"),
    "prompts.differences": ("entry=seq", *_DIFFERENCES),
}
_STATUS_OF = {"match": OK, "equal": OK, "cannot": UNPROVEN}
"""Exit status by outcome; of every other one it is `FAILED`."""

app = command_group("Verify, show, export and replay the audit log.")

REPLAY_TIMEOUT_S = 90.0  # longer than a replay may take on a server

app.command()(verify)
app.command()(export)
app.command()(bundle)


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="a request's x-request-id, trace id, answer id, or number of an audit entry"
        ),
    ] = None,
    *,
    last: Annotated[int, typer.Option(min=1, help="number of the newest entries")] = 20,
    action: Annotated[str | None, typer.Option(help="only entries with this action, e.g. policy.reloaded")] = None,
    tenant: Annotated[str | None, typer.Option(help="only entries about this tenant")] = None,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest entries, oldest first; with NAME the records and the audit entries of a request."""
    if name is not None:
        if server := server_in_place(url, store, "--store"):
            reply: dict[str, Any] = ask(server, key, "GET", f"/admin/requests/{quote(name, safe='')}")
        else:
            with ready_database(store) as database, database.read() as connection:
                reply = asdict(find_request(connection, storable(name)))
        if not reply["records"] and not reply["audit_entries"]:
            raise InvalidParameter(f"no request is known as {name[:128]!r}", param="name")
        print_reply(reply, {"records": _RECORD}, as_json=as_json)
        return
    with opened_log(store, url, key) as log:
        entries = log.newest(last, action=action, tenant=tenant)
    print_reply({"entries": [entry.plain() for entry in entries]}, {"entries": _ENTRIES}, as_json=as_json)


@app.command()
def replay(
    context: typer.Context,
    entry: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="number of an entry, or the id of a request")
    ] = None,
    *,
    bundle: Annotated[
        Path | None, typer.Option(metavar="FILE", help="written by `audit bundle`, maybe on another machine")
    ] = None,
    open_with: OpenWith = None,
    passphrase_file: PassphraseFile = None,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
    model: Annotated[str | None, typer.Option(help="model for a replay here; default: the configured model")] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="replay here even with another model or forward than recorded")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay a recorded request without speculation, here or on the server at --url; exit status 1 on a difference.

    Status 6: the audit log holds no tokens of it; it keeps them with --audit-sample and --audit-content tokens.
    Of a bundle it says for each prompt: equal, different, or cannot with the reason (status 6), such as a machine of
    another exact group, whose tokens may differ for that reason alone.
    """
    if (entry is None) == (bundle is None):
        raise InvalidParameter("allowed: an ID, or --bundle FILE", param="id")
    if server := server_in_place(url, bundle or store, "--bundle or --store"):
        path = f"/admin/audit/{quote(entry or '', safe='')}/replay"
        document = ask(server, key, "POST", path, timeout_s=REPLAY_TIMEOUT_S)
    else:
        from prolepsis.control.audit.commands.replay import bundle_replayed, replayed_here

        settings, start = settings_here(model=model), context.obj
        if bundle is not None:
            recorded = read_bundle_file(bundle, open_with, passphrase_file)
            document = bundle_replayed(recorded, settings, start, any_model=any_model)
        else:
            document = replayed_here(_recorded(store, entry or ""), settings, start, any_model=any_model)
    print_reply(document, _REPLAYED, as_json=as_json)
    if status := _STATUS_OF.get(document["outcome"], FAILED):
        raise typer.Exit(status)


def _recorded(store: str | None, name: str) -> AuditEntry:
    with ready_database(store) as database, database.read() as connection:
        entry = chain.find(connection, name, action=SERVED)
        was_served = entry is not None or bool(find_request(connection, storable(name)).records)
    has_no_tokens = entry is None or (entry.action == SERVED and entry.details is not None and not is_replayable(entry))
    if was_served and has_no_tokens:
        print_error(f"request {name[:128]} cannot be replayed: {NOT_KEPT}")
        raise typer.Exit(UNPROVEN)
    if entry is None:
        message = f"there is no audit entry {name[:128]!r}; allowed: a number, or the id of a request that has one"
        raise InvalidParameter(message, param="entry")
    return entry
