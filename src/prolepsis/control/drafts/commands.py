"""`prolepsis heads`: the draft heads of a running server."""

from typing import Annotated, get_args

import typer

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.terminal.output import command_group
from prolepsis.core.terminal.resource import REASON, Act, Resource, add_commands, parameter

_SWAPPED = typer.Argument(metavar="HEAD", help="NAME (its newest version), NAME@VERSION, NAME@ALIAS, auto or none")
_PLACE = typer.Option(help="draft_head, or candidate_head or learnt_head, which draft only where a rule names them")

HEADS = Resource(
    title="Heads",
    path="/admin/heads",
    help="List the installed heads, and those in use.",
    columns={
        "heads": ("head=label", "aliases > slot", "target", "misfit > auto", "chain_of_3 > tried", "size=size:bytes")
    },
    hint="Chain of 3: recorded tokens a pass with three drafted tokens. A head that goes in is tried at once.",
    empty="No draft head is installed. `prolepsis train head` makes one for the target.",
    acts={
        "head": Act(
            method="PUT",
            path="/admin/heads",
            command="swap",
            help="Draft with another head; requests in flight continue, with the same tokens.",
            parameters=(
                parameter("head", Annotated[str, _SWAPPED]),
                parameter("proposer", Annotated[HeadProposerName, _PLACE], DRAFT_HEAD),
                REASON,
            ),
            done="{proposer} drafts with {head} now. {reply.tried}",
            button="Swap in",
            row={"head": "{label}"},
            unless="misfit",
            choices={"proposer": get_args(HeadProposerName)},
            in_force="slot",
        )
    },
)
heads = add_commands(command_group("Show and swap the draft heads of a running server."), HEADS)
