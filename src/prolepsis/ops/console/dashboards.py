"""Where figures over longer times are drawn: links to Grafana's dashboards."""

from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit

DASHBOARDS = {
    "on-call": "Is it healthy? Failures, latencies, queue and engine of each server.",
    "executive": "Does it pay? Device time, savings, cost and its forecast, by rule and tenant.",
    "debug": "Why? Acceptance, modes and reasons by traffic class and proposer, correctness, steps and memory.",
}
"""The dashboards that are shipped (`ops/monitoring/dashboards`)."""


def dashboard_pages(grafana: str) -> FeaturePages:
    """`grafana`: its URL, or none."""

    async def dashboards(visit: Visit) -> Page:
        values = {"dashboards": DASHBOARDS, "grafana": "" if grafana == "none" else grafana.rstrip("/")}
        return Page("dashboards.html", "Dashboards", values, live=False)

    return FeaturePages((PageRoute("/console/dashboards", "Dashboards", dashboards, in_navigation=True),))
