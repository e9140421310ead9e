"""The dashboard on whether speculation pays: money, savings, volume, objectives."""

from prolepsis.ops.monitoring.dashboards.queries import (
    ACCEPTED,
    DEVICE,
    DRAFTED,
    OF_REQUESTS,
    PREDICTED,
    TOKENS,
    S,
    rate,
    ratio,
)
from prolepsis.ops.monitoring.grafana import Dashboard, Panel, PanelRow, Query

PRICE = "scalar(max(prolepsis_price_per_device_second))"
COST = f"1e6 * {rate(DEVICE)} / ({rate(TOKENS)} > 0) * {PRICE}"

EXECUTIVE = Dashboard(
    "prolepsis-executive",
    "Prolepsis: executive",
    "Does speculation pay? Money, savings, volume, and the promises that were made.",
    (
        PanelRow(
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
        PanelRow(
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
        PanelRow(
            "Savings",
            (
                Panel(
                    "Saved against the control, by rule, in its bounds",
                    [
                        Query(
                            f'max by (rule) (prolepsis_rollout_saved{{{S}, bound="{bound}"}})', f"{{{{rule}}}} {bound}"
                        )
                        for bound in ("lower", "estimate", "upper")
                    ],
                    "percentunit",
                    about="The fair comparison: one rule in one stage, arms assigned at random, 95 % at all times. "
                    "Without a rollout against plain decoding, or with few requests, there is none.",
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
                    about="Speedup is lower where further rows cost more; it must not fall below 100 %.",
                ),
            ),
        ),
        PanelRow(
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
