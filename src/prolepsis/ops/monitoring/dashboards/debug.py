"""The dashboard for finding a cause: acceptance, depths, stages of steps, drift, replays, memory."""

from prolepsis.ops.monitoring.dashboards.queries import (
    ACCEPTED,
    BY_TIER,
    DRAFTED,
    DRAFTS,
    TOKENS,
    S,
    mean,
    quantiles,
    rate,
    ratio,
)
from prolepsis.ops.monitoring.grafana import Dashboard, Panel, PanelRow, Query

DEBUG = Dashboard(
    "prolepsis-debug",
    "Prolepsis: debug",
    "What broke? Acceptance by proposer, class and position, depths, stages of steps, drift, replays, memory.",
    (
        PanelRow(
            "Acceptance",
            (
                Panel(
                    "Acceptance by proposer and traffic class",
                    [Query(ratio(ACCEPTED, DRAFTED, by="proposer, traffic_class"), "{{proposer}} {{traffic_class}}")],
                    "percentunit",
                    most=1,
                ),
                Panel(
                    "Acceptance length",
                    [Query(f"1 + {ratio(ACCEPTED, DRAFTS, by='proposer')}", "{{proposer}}")],
                    about="Tokens that a verified draft emits, the bonus token included.",
                ),
                Panel(
                    "Acceptance by position in the draft",
                    [
                        Query(
                            ratio(
                                "prolepsis_spec_decode_num_accepted_tokens_per_pos_total",
                                "prolepsis_spec_decode_num_draft_tokens_per_pos_total",
                                by="position",
                            ),
                            "{{position}}",
                        )
                    ],
                    "percentunit",
                    most=1,
                ),
                Panel("Accepted tokens / s", [Query(rate(ACCEPTED, by="proposer"), "{{proposer}}")]),
                Panel("Draft tokens / s", [Query(rate(DRAFTED, by="proposer"), "{{proposer}}")]),
                Panel("Drafts / s", [Query(rate(DRAFTS, by="proposer"), "{{proposer}}")]),
                Panel(
                    "Output from drafts",
                    [Query(f"{rate(ACCEPTED)} / ({rate(TOKENS)} > 0)")],
                    "percentunit",
                    about="The part of all tokens that a proposer guessed.",
                    most=1,
                ),
                Panel(
                    "Steps without a draft, by reason",
                    [Query(rate("prolepsis_spec_decode_num_plain_steps_total", by="reason"), "{{reason}}")],
                    is_stacked=True,
                ),
                Panel(
                    "Requests by mode and reason",
                    [Query(rate("prolepsis_requests_effective_total", by="mode, reason"), "{{mode}} {{reason}}")],
                    "reqps",
                    is_stacked=True,
                ),
            ),
        ),
        PanelRow(
            "Depth",
            (
                Panel(
                    "Depth of drafts",
                    [Query(rate("prolepsis_spec_decode_draft_depth_tokens_bucket", by="le"), "{{le}}")],
                    kind="heatmap",
                ),
                Panel(
                    "Accepted depth",
                    [Query(rate("prolepsis_spec_decode_accepted_depth_tokens_bucket", by="le"), "{{le}}")],
                    kind="heatmap",
                ),
                Panel(
                    "Tokens of a target pass",
                    [Query(mean("prolepsis_request_tokens_per_pass", by="mode"), "{{mode}}")],
                    about="Mean of requests; 1 without speculation.",
                ),
            ),
        ),
        PanelRow(
            "Steps",
            (
                Panel(
                    "Time of a step by stage",
                    [Query(mean("prolepsis_step_stage_duration_seconds", by="stage"), "{{stage}}")],
                    "s",
                    is_stacked=True,
                ),
                Panel("Time of a step", quantiles("prolepsis_step_duration_seconds"), "s"),
                Panel("Tokens of a target pass of a step", [Query(mean("prolepsis_step_tokens"))]),
                Panel(
                    "Wait between two arrivals of tokens",
                    quantiles("prolepsis_inter_token_latency_seconds", BY_TIER),
                    "s",
                    about="A draft brings several tokens at once: longer waits, fewer of them.",
                ),
                Panel("The same for each token", quantiles("prolepsis_amortized_token_latency_seconds", BY_TIER), "s"),
                Panel(
                    "Structured answers",
                    [
                        Query(
                            rate("prolepsis_structured_answers_total", by="kind, mode, result"),
                            "{{kind}} {{mode}} {{result}}",
                        )
                    ],
                    "reqps",
                ),
            ),
        ),
        PanelRow(
            "Drift and correctness",
            (
                Panel(
                    "Usual acceptance of the first drafted token",
                    [
                        Query(
                            f"max by (proposer, traffic_class) (prolepsis_drift_acceptance{{{S}}})",
                            "{{proposer}} {{traffic_class}}",
                        )
                    ],
                    "percentunit",
                    most=1,
                ),
                Panel(
                    "Overestimated, and distance from the target",
                    [
                        Query(
                            f"max by (proposer) (prolepsis_drift_overestimated{{{S}}})", "{{proposer}} overestimated"
                        ),
                        Query(f"max by (proposer) (prolepsis_drift_total_variation{{{S}}})", "{{proposer}} distance"),
                    ],
                    "percentunit",
                ),
                Panel(
                    "Drift status",
                    [
                        Query(
                            f"max by (proposer, traffic_class, status) (prolepsis_drift_status{{{S}}} == 1)",
                            "{{proposer}} {{traffic_class}} {{status}}",
                        )
                    ],
                    kind="state-timeline",
                ),
                Panel(
                    "Replays", [Query(rate("prolepsis_replays_total", by="outcome"), "{{outcome}}")], is_stacked=True
                ),
                Panel(
                    "Breaker events",
                    [
                        Query(
                            rate("prolepsis_breaker_events_total", by="proposer, after, reason"),
                            "{{proposer}} {{after}} {{reason}}",
                        )
                    ],
                ),
                Panel(
                    "Accepted tokens that did not reach the client",
                    [Query(rate("prolepsis_delivery_lost_tokens_total", by="reason"), "{{reason}}")],
                ),
            ),
        ),
        PanelRow(
            "Memory and records",
            (
                Panel(
                    "Memory of the process", [Query(f"process_resident_memory_bytes{{{S}}}", "{{instance}}")], "bytes"
                ),
                Panel(
                    "Memory of proposers",
                    [
                        Query(
                            f"max by (proposer, kind) (prolepsis_proposer_memory_bytes{{{S}}})", "{{proposer}} {{kind}}"
                        )
                    ],
                    "bytes",
                    is_stacked=True,
                ),
                Panel(
                    "Prefix cache",
                    [Query(ratio("prolepsis_prefix_cache_hits_total", "prolepsis_prefix_cache_queries_total"), "hits")],
                    "percentunit",
                    most=1,
                ),
                Panel(
                    "Store",
                    [
                        Query(rate("prolepsis_store_written_total", by="kind"), "{{kind}} written"),
                        Query(f"max(prolepsis_store_queued_items{{{S}}})", "queued"),
                    ],
                ),
                Panel(
                    "What serves",
                    [Query(f"prolepsis_build_info{{{S}}}")],
                    kind="table",
                    width=16,
                ),
            ),
        ),
    ),
)
