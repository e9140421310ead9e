"""Three dashboards: does it pay (executive), is it healthy (on call), what broke (debug)."""

from collections.abc import Mapping

from prolepsis.monitoring.grafana import Annotation, Dashboard, Panel, Query, Row, Variable, dashboard_json

S = 'instance=~"$instance"'
"""The servers that are chosen."""
T = f'{S}, route=~"$route", tier=~"$tier"'
"""The traffic that is chosen, for series by route and tier."""
BY_TIER = f'{S}, tier=~"$tier"'
FAILED = f'{T}, outcome=~"failed|aborted"'
OPEN = f'{S}, state!="closed"'
RATE = "$__rate_interval"

VARIABLES = (
    Variable("model", "label_values(prolepsis_build_info, model)"),
    Variable("instance", 'label_values(prolepsis_build_info{model=~"$model"}, instance)'),
    Variable("route", "label_values(prolepsis_requests_total, route)"),
    Variable("tier", "label_values(prolepsis_requests_total, tier)"),
)
ANNOTATIONS = (
    Annotation("rollout", f"changes(prolepsis_rollout_stage{{{S}}}[1m]) > 0", "rule {{rule}}", "blue"),
    Annotation(
        "policy, head or software",
        f"count by (policy, draft_head, version) (prolepsis_build_info{{{S}}})"
        f" unless count by (policy, draft_head, version) (prolepsis_build_info{{{S}}} offset 1m)",
        "policy {{policy}}, head {{draft_head}}, version {{version}}",
        "purple",
    ),
    Annotation("kill switch", f"max by (source) (prolepsis_speculation_killed{{{S}}}) == 1", "{{source}}", "red"),
)


def rate(name: str, selector: str = S, by: str = "") -> str:
    """Return the rate of a counter, summed."""
    return f"sum{f' by ({by})' if by else ''} (rate({name}{{{selector}}}[{RATE}]))"


def ratio(part: str, whole: str, selector: str = S, by: str = "") -> str:
    """Return the ratio of two counters' rates, without a value where nothing happened."""
    return f"{rate(part, selector, by)} / ({rate(whole, selector, by)} > 0)"


def mean(name: str, selector: str = S, by: str = "") -> str:
    """Return the mean of a histogram."""
    return ratio(f"{name}_sum", f"{name}_count", selector, by)


def quantile(q: float, name: str, selector: str = S, by: str = "") -> str:
    """Return a quantile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{name}_bucket', selector, labels)})"


def quantiles(name: str, selector: str = S, by: str = "") -> list[Query]:
    """Return the median, 95th and 99th percentile."""
    suffix = f" {{{{{by}}}}}" if by else ""
    return [Query(quantile(q, name, selector, by), f"p{100 * q:g}{suffix}") for q in (0.5, 0.95, 0.99)]


DRAFTED = "prolepsis_spec_decode_num_draft_tokens_total"
ACCEPTED = "prolepsis_spec_decode_num_accepted_tokens_total"
DRAFTS = "prolepsis_spec_decode_num_drafts_total"
TOKENS = "prolepsis_generation_tokens_total"
DEVICE = "prolepsis_device_seconds_total"
OF_REQUESTS = "prolepsis_request_device_seconds_total"
PREDICTED = "prolepsis_request_predicted_plain_seconds_total"
OUTPUT = "prolepsis_request_output_tokens_total"
PRICE = "scalar(max(prolepsis_price_per_device_second))"
TO_FIRST = "prolepsis_time_to_first_token_seconds"
OF_ONE = "prolepsis_request_time_per_output_token_seconds"
TO_THE_END = "prolepsis_e2e_request_latency_seconds"
COST = f"1e6 * {rate(DEVICE)} / ({rate(TOKENS)} > 0) * {PRICE}"
CANARY, CONTROL = f'{S}, arm="canary"', f'{S}, arm=~"holdout|unassigned"'


def per_token(selector: str) -> str:
    return f"{rate(OF_REQUESTS, selector)} / ({rate(OUTPUT, selector)} > 0)"


EXECUTIVE = Dashboard(
    "prolepsis-executive",
    "Prolepsis: executive",
    "Does speculation pay? Money, savings, volume, and the promises that were made.",
    (
        Row(
            "Now",
            (
                Panel("Cost of a million tokens", [Query(COST)], "currencyUSD", "stat", "At the price in use.", 4),
                Panel(
                    "Saved, by prediction",
                    [Query(f"1 - {rate(OF_REQUESTS)} / ({rate(PREDICTED)} > 0)")],
                    "percentunit",
                    "stat",
                    "Device time against the cost predicted for plain decoding. Negative: speculation costs more.",
                    4,
                ),
                Panel("Draft acceptance rate", [Query(ratio(ACCEPTED, DRAFTED))], "percentunit", "stat", "", 4, most=1),
                Panel("Tokens / s", [Query(rate(TOKENS))], "short", "stat", "", 4),
                Panel(
                    "Availability, budget left",
                    [Query('slo:period_error_budget_remaining:ratio{sloth_slo="availability"}')],
                    "percentunit",
                    "stat",
                    "Of the error budget of 30 days.",
                    4,
                ),
                Panel(
                    "Correctness, budget left",
                    [Query('slo:period_error_budget_remaining:ratio{sloth_slo="correctness"}')],
                    "percentunit",
                    "stat",
                    "Of the error budget of 30 days; replays that differ use it up.",
                    4,
                ),
            ),
        ),
        Row(
            "Money",
            (
                Panel("Cost of a million tokens", [Query(COST, "used")], "currencyUSD"),
                Panel(
                    "Spend in a day, and its forecast",
                    [
                        Query("24 * avg_over_time(prolepsis:spend:rate1h[1d])", "last day"),
                        Query("24 * predict_linear(prolepsis:spend:rate1h[3d], 604800)", "in a week, at this trend"),
                    ],
                    "currencyUSD",
                ),
                Panel(
                    "Device time by purpose",
                    [Query(rate(DEVICE, by="kind"), "{{kind}}")],
                    "percentunit",
                    about="Seconds of the device in each second.",
                    is_stacked=True,
                ),
            ),
        ),
        Row(
            "Savings",
            (
                Panel(
                    "Device time of a token: canary against the holdout",
                    [Query(per_token(CANARY), "canary"), Query(per_token(CONTROL), "holdout")],
                    "s",
                    about="The fair comparison: arms are assigned at random. Without a rollout there is no holdout.",
                ),
                Panel(
                    "Saved, by prediction, by route",
                    [Query(f"1 - {rate(OF_REQUESTS, by='route')} / ({rate(PREDICTED, by='route')} > 0)", "{{route}}")],
                    "percentunit",
                ),
                Panel(
                    "Volume against speedup",
                    [
                        Query(rate(TOKENS), "tokens / s"),
                        Query(f"100 * {rate(PREDICTED)} / ({rate(OF_REQUESTS)} > 0)", "% of plain's speed"),
                    ],
                    about="Speedup falls where rows are dear; it must not fall below 100 %.",
                ),
            ),
        ),
        Row(
            "Trends and promises",
            (
                Panel(
                    "Acceptance against the same hour of last weeks",
                    [
                        Query("prolepsis:acceptance:ratio_rate1h", "now"),
                        Query("prolepsis:acceptance:baseline1h", "last four weeks"),
                    ],
                    "percentunit",
                    most=1,
                ),
                Panel(
                    "Requests by what speculation did",
                    [Query(rate("prolepsis_requests_effective_total", by="mode"), "{{mode}}")],
                    "reqps",
                    is_stacked=True,
                ),
                Panel(
                    "Error budgets left",
                    [Query("slo:period_error_budget_remaining:ratio", "{{sloth_slo}} {{tier}}")],
                    "percentunit",
                    about="Of 30 days. Two are speculation's own: correctness (outputs) and corrections (time).",
                ),
            ),
        ),
    ),
)

ON_CALL = Dashboard(
    "prolepsis-on-call",
    "Prolepsis: on call",
    "Is it healthy, and if not, where? Latency, load, errors, speculation, changes.",
    (
        Row(
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
        Row(
            "Latency",
            (
                Panel("Time to the first token", quantiles(TO_FIRST, T), "s"),
                Panel("Time of a token, by request", quantiles(OF_ONE, T), "s"),
                Panel("Time to the end", quantiles(TO_THE_END, T), "s"),
                Panel(
                    "p99 of the first token, drafted against plain",
                    [Query(quantile(0.99, TO_FIRST, T, "mode"), "{{mode}}")],
                    "s",
                    about="If only drafted requests are late, speculation is the cause.",
                ),
                Panel(
                    "p99 of a token, drafted against plain",
                    [Query(quantile(0.99, OF_ONE, T, "mode"), "{{mode}}")],
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
        Row(
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
        Row(
            "Errors",
            (
                Panel(
                    "Requests by outcome",
                    [Query(rate("prolepsis_requests_total", T, "outcome"), "{{outcome}}")],
                    "reqps",
                    is_stacked=True,
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
        Row(
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

DEBUG = Dashboard(
    "prolepsis-debug",
    "Prolepsis: debug",
    "What broke? Acceptance by proposer, class and position, depths, stages of steps, drift, replays, memory.",
    (
        Row(
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
        Row(
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
        Row(
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
        Row(
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
        Row(
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

DASHBOARDS = (EXECUTIVE, ON_CALL, DEBUG)


def dashboard_files() -> Mapping[str, str]:
    """Return the file of each dashboard by its path."""
    return {
        f"dashboards/{one.uid.removeprefix('prolepsis-')}.json": dashboard_json(one, VARIABLES, ANNOTATIONS, DASHBOARDS)
        for one in DASHBOARDS
    }
