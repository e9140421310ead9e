"""The dashboard for people on call: is the service healthy, and if not, where is the fault."""

from prolepsis.ops.monitoring.dashboards.queries import (
    ACCEPTED,
    BY_TIER,
    DRAFTED,
    DRAFTS,
    FINISHED,
    OF_ONE,
    TO_FIRST,
    TO_THE_END,
    TOKENS,
    S,
    T,
    mean,
    quantile,
    quantiles,
    rate,
    ratio,
)
from prolepsis.ops.monitoring.grafana import Dashboard, Panel, PanelRow, Query

FAILED = f'{T}, outcome=~"failed|aborted"'
OPEN = f'{S}, state!="closed"'

ON_CALL = Dashboard(
    "prolepsis-on-call",
    "Prolepsis: on call",
    "Is it healthy, and if not, where? Latency, load, errors, speculation, changes.",
    (
        PanelRow(
            "Now",
            (
                Panel("Firing", [Query('count(ALERTS{alertstate="firing"}) or vector(0)')], "short", "stat", "", 4),
                Panel("Requests / s", [Query(rate("prolepsis_requests_total", T))], "reqps", "stat", "", 4),
                Panel(
                    "Failed",
                    [
                        Query(
                            f"({rate('prolepsis_requests_total', FAILED)} or vector(0))"
                            f" / ({rate('prolepsis_requests_total', T)} > 0)"
                        )
                    ],
                    "percentunit",
                    "stat",
                    "",
                    4,
                ),
                Panel("First token, p99", [Query(quantile(0.99, TO_FIRST, T))], "s", "stat", "", 4),
                Panel("Shed level", [Query(f"max(prolepsis_shed_level{{{S}}})")], "short", "stat", "0 is calm.", 4),
                Panel(
                    "Speculation stopped by",
                    [Query(f"sum(prolepsis_speculation_killed{{{S}}}) or vector(0)")],
                    "short",
                    "stat",
                    "Sources of the kill switch that are on.",
                    4,
                ),
            ),
        ),
        PanelRow(
            "Latency",
            (
                Panel("Time to the first token", quantiles(TO_FIRST, T, "tier"), "s"),
                Panel("Time of a token, by request", quantiles(OF_ONE, FINISHED, "tier"), "s"),
                Panel("Time to the end", quantiles(TO_THE_END, FINISHED, "tier"), "s"),
                Panel(
                    "p99 of the first token, drafted against plain",
                    [Query(quantile(0.99, TO_FIRST, T, "mode"), "{{mode}}")],
                    "s",
                    about="If only drafted requests are late, speculation is the cause.",
                ),
                Panel(
                    "p99 of a token, drafted against plain",
                    [Query(quantile(0.99, OF_ONE, FINISHED, "mode"), "{{mode}}")],
                    "s",
                ),
                Panel(
                    "Where requests spend their time",
                    [
                        Query(mean(f"prolepsis_request_{stage}_time_seconds", BY_TIER), stage)
                        for stage in ("queue", "prefill", "decode", "stream")
                    ],
                    "s",
                    about="Means of ended requests. Streams overlap with decoding.",
                    is_stacked=True,
                ),
            ),
        ),
        PanelRow(
            "Load",
            (
                Panel(
                    "Queue",
                    [
                        Query(f"sum by (tier) (prolepsis_admission_queued_requests{{{BY_TIER}}})", "waiting, {{tier}}"),
                        Query(f"sum(prolepsis_num_requests_running{{{S}}})", "in the engine"),
                    ],
                ),
                Panel(
                    "Age of the oldest waiting request",
                    [Query(f"max by (instance) (prolepsis_admission_queue_age_seconds{{{S}}})", "{{instance}}")],
                    "s",
                ),
                Panel(
                    "Levels of load shedding",
                    [Query(f"max by (instance) (prolepsis_shed_level{{{S}}})", "{{instance}}")],
                    kind="state-timeline",
                    about="1 shallow drafts, 2 plain, 3 batch waits, 4 low tiers refused.",
                ),
                Panel("Tokens", [Query(rate(TOKENS, by="instance"), "{{instance}}")], "short"),
                Panel(
                    "KV pages in use",
                    [Query(f"max by (instance) (prolepsis_kv_cache_usage_perc{{{S}}})", "{{instance}}")],
                    "percentunit",
                    most=1,
                ),
                Panel(
                    "Refused",
                    [Query(rate("prolepsis_admission_refused_total", by="reason"), "{{reason}}")],
                    "reqps",
                    is_stacked=True,
                ),
            ),
        ),
        PanelRow(
            "Errors",
            (
                Panel(
                    "Requests by outcome",
                    [Query(rate("prolepsis_requests_total", T, "outcome"), "{{outcome}}")],
                    "reqps",
                    is_stacked=True,
                ),
                Panel(
                    "p95 until the end, by outcome",
                    [Query(quantile(0.95, TO_THE_END, T, "outcome"), "{{outcome}}")],
                    "s",
                    about="Do clients leave because answers take long? Do requests fail at once, or at a deadline?",
                ),
                Panel(
                    "HTTP responses of 4xx and 5xx",
                    [Query(rate("prolepsis_http_requests_total", S + ', status=~"4..|5.."', "status"), "{{status}}")],
                    "reqps",
                ),
                Panel(
                    "Deadlines that passed, by stage",
                    [Query(rate("prolepsis_request_timeouts_total", BY_TIER, "stage"), "{{stage}}")],
                    "reqps",
                ),
            ),
        ),
        PanelRow(
            "Speculation",
            (
                Panel(
                    "Draft acceptance rate",
                    [Query(ratio(ACCEPTED, DRAFTED, by="proposer"), "{{proposer}}")],
                    "percentunit",
                    most=1,
                ),
                Panel(
                    "Drafts that fail at the first token",
                    [
                        Query(
                            ratio("prolepsis_spec_decode_num_first_token_failures_total", DRAFTS, by="proposer"),
                            "{{proposer}}",
                        )
                    ],
                    "percentunit",
                    about="A spike is the first sign of damaged drafts.",
                    most=1,
                ),
                Panel(
                    "Time lost to corrections",
                    [
                        Query(
                            rate("prolepsis_spec_decode_correction_seconds_total", by="traffic_class"),
                            "{{traffic_class}}",
                        )
                    ],
                    "percentunit",
                    about="Device time of rejected draft tokens, in each second.",
                ),
                Panel(
                    "Rollouts",
                    [
                        Query(
                            f'max by (rule, phase) (prolepsis_rollout_phase{{{S}, phase!="off"}} == 1)',
                            "{{rule}} {{phase}}",
                        )
                    ],
                    kind="state-timeline",
                ),
                Panel(
                    "Share of each rollout",
                    [Query(f"max by (rule) (prolepsis_rollout_share{{{S}}})", "{{rule}}")],
                    "percentunit",
                    most=1,
                ),
                Panel(
                    "Breakers that are not closed",
                    [
                        Query(
                            f"max by (proposer, traffic_class, state) (prolepsis_breaker_state{{{OPEN}}})",
                            "{{proposer}} {{traffic_class}} {{state}}",
                        )
                    ],
                    kind="state-timeline",
                ),
            ),
        ),
    ),
)
