"""`prolepsis workload`: what requests are like, and what they let each proposer expect."""

from pathlib import Path
from typing import Annotated

import typer

from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import Key, ServerUrl, ask, server_in_place
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import AsJson

_LENGTHS = (f"{name} {level}={name}_tokens.{level}" for name in ("prompt", "answer") for level in ("p50", "p95"))
_CLASSES = ("traffic_class", "kind", "num_requests", *_LENGTHS)


def workload(
    file: Annotated[Path | None, typer.Argument(help="a recording or other trace, or JSON lines with texts")] = None,
    *,
    url: ServerUrl = None,
    key: Key = None,
    model: Annotated[str | None, typer.Option(help="counts texts in its tokens; default: the engine's")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what requests are like (lengths, overlap, prefixes, load, languages), and what proposers may gain."""
    from prolepsis.engine.models.files.store import resolve
    from prolepsis.engine.models.files.tokenizer_files import load_tokenizer
    from prolepsis.lab.workload.profile import read_requests, report, served_requests

    server = server_in_place(url, file, "FILE")
    if server is not None:
        recent = ask(server, key, "GET", "/admin/requests?last=512")["requests"]
        requests, shared = served_requests([entry["record"] for entry in recent])
    elif file is not None:
        engine = settings_here(model=model).engine
        requests, shared = read_requests(file, lambda: load_tokenizer(resolve(engine.model, engine.model_dir)))
    else:
        raise ConfigError("allowed: either FILE or --url URL", param="file")
    if not requests:
        raise ConfigError(f"{server or file} has no request; allowed: one or more", param="file")
    document = {"shared_prefix_share": shared, **report(requests, "measured on this server" if server else "recorded")}
    prompts = "" if "/" in requests[0].category else f" --prompts {file}"
    command = f"run {file} --machine rehearsal/machine.json" if document["drafts"] else f"measure{prompts} -o rehearsal"
    command = f"prolepsis policy show --url {server}" if server else f"prolepsis rehearse {command}"
    document |= {"not_told": "what is - or none", "next": [{"command": command}]}
    print_reply(document, {"classes": _CLASSES}, as_json=as_json)
