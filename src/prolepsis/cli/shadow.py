"""`prolepsis shadow`: what speculation would bring, from requests of a running server that draft in shadow."""

from prolepsis.cli.output import AsJson, print_json, print_table
from prolepsis.cli.servers import HERE, Key, Url, ask


def shadow(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """Show acceptance and expected speedup (95 % intervals) by traffic class and proposer, and the cost of shadow."""
    document = ask(url, key, "GET", "/admin/shadow")
    if as_json:
        print_json(document)
        return
    traffic_classes = [
        [
            one["traffic_class"],
            str(one["num_requests"]),
            str(one["num_tokens"]),
            _shown(one["expected_speedup"], "{:.3f}x"),
            _shown(one["cost"], "{:.2%}"),
        ]
        for one in document["traffic_classes"]
    ]
    print_table(url, ["traffic_class", "requests", "tokens", "expected speedup", "cost of shadow"], traffic_classes)
    proposers = [
        [
            one["traffic_class"],
            each["proposer"],
            str(each["num_drafts"]),
            _shown(each["acceptance_rate"], "{:.3f}"),
            _shown(each["saved"], "{:.1%}"),
        ]
        for one in document["traffic_classes"]
        for each in one["proposers"]
    ]
    print_table("proposers", ["traffic_class", "proposer", "drafts", "acceptance", "time saved"], proposers)


def _shown(estimate: dict[str, float | None] | None, form: str) -> str:
    if estimate is None:
        return "-"
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    bounds = "" if low is None else f" ({form.format(low)} to {form.format(high)})"
    return form.format(value) + bounds
