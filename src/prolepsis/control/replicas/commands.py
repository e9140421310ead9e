"""`prolepsis replicas`: the servers that share a store."""

from prolepsis.core.terminal.admin import Verb, command

replicas = command(
    Verb(
        "replicas",
        "GET /admin/replicas",
        "Show the servers that share a store: state, exact group, region, and when each was last seen.",
        columns={
            "replicas": (
                *("replica", "here", "state", "address", "region", "model", "exact_group", "version"),
                *("started_at", "seen=seen_s_ago"),
            ),
            "replicas.engines": (
                *("replica", "engine=name", "ready", "detail", "exact_group", "running=num_running"),
                *("waiting=num_waiting", "kv_usage"),
            ),
        },
    )
)
