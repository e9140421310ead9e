"""Series, selectors and expressions that the dashboards share."""

from prolepsis.ops.monitoring.grafana import Query

S = 'instance=~"$instance"'
"""The servers that are chosen."""
T = f'{S}, route=~"$route", tier=~"$tier"'
"""The traffic that is chosen, for series by route and tier."""
FINISHED = f'{T}, outcome="finished"'
BY_TIER = f'{S}, tier=~"$tier"'
RATE = "$__rate_interval"

DRAFTED = "prolepsis_spec_decode_num_draft_tokens_total"
ACCEPTED = "prolepsis_spec_decode_num_accepted_tokens_total"
DRAFTS = "prolepsis_spec_decode_num_drafts_total"
TOKENS = "prolepsis_generation_tokens_total"
DEVICE = "prolepsis_device_seconds_total"
OF_REQUESTS = "prolepsis_request_device_seconds_total"
PREDICTED = "prolepsis_request_predicted_plain_seconds_total"
TO_FIRST = "prolepsis_time_to_first_token_seconds"
OF_ONE = "prolepsis_request_time_per_output_token_seconds"
TO_THE_END = "prolepsis_e2e_request_latency_seconds"


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
