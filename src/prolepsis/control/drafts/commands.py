"""`prolepsis heads`: the draft heads of a running server."""

from typing import Annotated

import typer

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.terminal.admin import Verb, add_verbs, parameter
from prolepsis.core.terminal.output import command_group

_SWAPPED = typer.Argument(metavar="HEAD", help="NAME (its newest version), NAME@VERSION, NAME@ALIAS, auto or none")
_PLACE = typer.Option(help="draft_head, or candidate_head: a second head, which drafts only where a rule names it")

heads = add_verbs(
    command_group("Show and swap the draft heads of a running server."),
    [
        Verb(
            "list",
            "GET /admin/heads",
            "List the installed heads, and those in use.",
            columns={"heads": ("name", "version", "aliases", "target", "misfit", "chain_of_3", "size=size:bytes")},
        ),
        Verb(
            "swap",
            "POST /admin/heads/swap",
            "Draft with another head; requests in flight continue, with the same tokens.",
            (
                parameter("head", Annotated[str, _SWAPPED]),
                parameter("proposer", Annotated[HeadProposerName, _PLACE], DRAFT_HEAD),
                parameter("reason", Annotated[str, typer.Option(help="recorded in the audit log")], ""),
            ),
        ),
    ],
)
