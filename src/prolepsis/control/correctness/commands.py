"""`prolepsis show correctness`: how many replayed requests of a running server match plain decoding."""

from prolepsis.core.terminal.resource import Resource

CORRECTNESS = Resource(
    title="Correctness",
    path="/admin/health",
    part="correctness",
    help="Show how many replayed requests match plain decoding; exit status 1 if more than rounding makes them differ.",
    command="correctness",
    columns={
        "differences": (
            *("at", "request_id > route > rule", "kind", "position", "margin > tolerance", "similarity"),
            "mode > reason",
        )
    },
    fails=lambda document: bool(document["outcomes"]["structural"]) or document["similarity"]["is_low"],
    hint="A share of finished requests is decoded again without speculation, when the engine is idle, and compared"
    " token by token. Near tie: rounding decided; structural: other tokens, and no rounding explains it."
    " The page of a request shows where its answers part.",
    empty="No replay had other tokens.",
    links={"request_id": "/console/requests/{request_id}"},
)
