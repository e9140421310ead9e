"""`prolepsis shadow`: what speculation would bring, from requests of a running server that draft in shadow."""

from prolepsis.cli.groups import AsJson
from prolepsis.cli.output import print_json, print_table
from prolepsis.cli.servers import HERE, Key, Url, ask


def shadow(url: Url = HERE, key: Key = None, as_json: AsJson = False) -> None:
    """Show acceptance, expected speedup and their 95 % intervals, by slice and proposer, and what shadow costs."""
    document = ask(url, key, "GET", "/admin/shadow")
    if as_json:
        print_json(document)
        return
    slices = [
        [
            one["slice"],
            str(one["num_requests"]),
            str(one["num_tokens"]),
            _shown(one["expected_speedup"], "{:.3f}x"),
            _shown(one["cost"], "{:.2%}"),
        ]
        for one in document["slices"]
    ]
    print_table(url, ["slice", "requests", "tokens", "expected speedup", "cost of shadow"], slices)
    proposers = [
        [
            one["slice"],
            each["proposer"],
            str(each["num_drafts"]),
            _shown(each["acceptance_rate"], "{:.3f}"),
            _shown(each["saved"], "{:.1%}"),
        ]
        for one in document["slices"]
        for each in one["proposers"]
    ]
    print_table("proposers", ["slice", "proposer", "drafts", "acceptance", "time saved"], proposers)


def _shown(estimate: dict[str, float | None] | None, form: str) -> str:
    if estimate is None:
        return "-"
    value, low, high = (estimate[name] for name in ("value", "low", "high"))
    bounds = "" if low is None else f" ({form.format(low)} to {form.format(high)})"
    return form.format(value) + bounds
