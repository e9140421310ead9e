"""`prolepsis show traffic`: what drafts bring in each domain and language that the policy lists."""

from prolepsis.core.terminal.resource import Resource

TRAFFIC = Resource(
    title="Domains and languages",
    path="/admin/traffic",
    part="parts",
    help="Show acceptance and gain for each domain and language that the policy lists.",
    command="traffic",
    columns={
        "parts": (
            *("part", "value", "requests=num_requests", "draft tokens=num_draft_tokens"),
            *("acceptance=acceptance_rate", "gain=gain:share"),
        )
    },
    hint="Gain: share of plain decoding's device time that drafts saved, or in shadow would have, by prediction.",
    empty="No request has a part: the policy in use lists no domain and no language (traffic_classes).",
)
