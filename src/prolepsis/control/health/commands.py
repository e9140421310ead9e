"""`prolepsis breaker` and `prolepsis drift`: suspended proposers of a running server, and changes of acceptance."""

from prolepsis.core.terminal.admin import REASON, Verb, add_verbs, argument
from prolepsis.core.terminal.output import command_group

_BREAKERS = (
    *("traffic_class", "proposer", "state", "tenants", "reason", "by"),
    *("acceptance", "judged drafts=judged", "spent", "gained"),
)

breaker = add_verbs(
    command_group("Show and set the circuit breakers of a running server, by proposer and traffic class."),
    [
        Verb(
            "list",
            "GET /admin/breakers",
            "List the breakers: state, reason and tenants, acceptance of first tokens, tokens spent and gained.",
            columns={"breakers": _BREAKERS},
        ),
        Verb(
            "set",
            "PUT /admin/breakers",
            "Set one breaker manually. It keeps the state, also after a restart, until it is set to closed.",
            (
                argument("proposer", "as `breaker list` shows it"),
                argument("traffic_class", "as `breaker list` shows it", "TRAFFIC_CLASS"),
                argument("state", "forced_open, forced_closed or metrics_only; closed: automatic again"),
                REASON,
            ),
        ),
    ],
)

drift = add_verbs(
    command_group("Show drift of acceptance by proposer and traffic class, and restart its detection."),
    [
        Verb(
            "show",
            "GET /admin/drift",
            "Show acceptance and the state of drift detection for each proposer and traffic class.",
            columns={
                "streams": (
                    *("traffic_class", "proposer", "status", "overall=acceptance", "recent=recent_acceptance"),
                    *("excess estimate=overestimated", "distance=total_variation", "benefit"),
                    *("judged drafts=num_judged", "version"),
                )
            },
        ),
        Verb(
            "reset",
            "POST /admin/drift/reset",
            "Restart the detection for one proposer: after a known change of its traffic, or after an alarm.",
            (
                argument("proposer", "as `drift show` names it"),
                argument("traffic_class", "as `drift show` names it", "TRAFFIC_CLASS"),
            ),
        ),
    ],
)
