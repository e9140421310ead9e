"""`prolepsis correctness`: how many replayed requests of a running server match plain decoding."""

from prolepsis.core.terminal.admin import Verb, command

correctness = command(
    Verb(
        "correctness",
        "GET /admin/correctness",
        "Show how many replayed requests match plain decoding; exit status 1 if one differs by more than rounding.",
        columns={
            "differences": ("at", "request_id", "route", "mode", "position", "kind", "margin", "tolerance"),
        },
        fails=lambda document: bool(document["outcomes"]["structural"]),
    )
)
