"""`prolepsis show replicas`: the servers that share a store."""

from prolepsis.core.terminal.resource import Resource

REPLICAS = Resource(
    title="Servers",
    path="/admin/replicas",
    help="Show the servers that share a store: state, exact group, region, and when each was last seen.",
    command="replicas",
    columns={
        "replicas": (
            *("replica > address", "state > here > seen=seen_s_ago", "region", "model", "exact_group"),
            *("version", "started_at"),
        ),
        "replicas:exact groups": (
            *("group=exact_group", "forward=group.forward", "exactness=group.exactness", "weights=group.weights"),
            *("tokenizer=group.tokenizer", "machine=group.machine"),
        ),
        "replicas.engines": (
            *("replica", "engine=name", "ready > detail", "exact_group", "running=num_running"),
            *("waiting=num_waiting", "kv_usage=kv_usage:share"),
        ),
    },
    hint="The servers that share the store. Replicas of one exact group produce exactly the same tokens, so each can"
    " continue the streams of the others. A server without a store knows of no other.",
    links={"address": "{address}/console"},
)
