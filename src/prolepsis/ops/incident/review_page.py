"""A review as Markdown."""

from collections.abc import Iterator, Sequence

from prolepsis.core.config import DAY_S
from prolepsis.core.units import figure
from prolepsis.ops.incident.review import (
    FAILED,
    FELL,
    LEAST_DRAFT_TOKENS,
    LEAST_REQUESTS,
    LOW_BUDGET,
    Review,
    changes_shown,
    saved,
    share,
)
from prolepsis.ops.incident.timeline import cell, shown_at


def page(review: Review) -> str:
    """Return the review as a document, what to look at first."""
    parts = [_findings, _owners, _budgets, _totals, _classes, _failures, _changes]
    parts[4:4] = [_expected] if review.is_monthly else []
    parts += [_capacity, _heads, _drills] if review.is_quarterly else []
    lines = [f"# Review of {review.period}", ""]
    for part in parts:
        lines += [*part(review), ""]
    return "\n".join(lines).rstrip() + "\n"


def _findings(review: Review) -> Iterator[str]:
    yield "## What to look at"
    yield ""
    rows = [[one.what, one.subject, one.why] for one in review.findings]
    yield from _table(["what", "where", "why"], rows, "Nothing, by these rules:")
    yield ""
    yield (
        f"Looked at: openings of breakers, rollbacks, replays that differ and cliffs; budgets below {share(LOW_BUDGET)}"
        f" and pages (with Prometheus); more than {share(FAILED)} failed, and device time above that predicted without "
        f"drafts, in classes of {LEAST_REQUESTS} requests; acceptance that fell by {share(FELL)} of what it was, with "
        f"{LEAST_DRAFT_TOKENS} draft tokens in both periods."
    )


def _owners(review: Review) -> Iterator[str]:
    yield "## Owners"
    yield ""
    rows = [[rule, owner or "none is named (`owner` in the policy)"] for rule, owner in review.owners.items()]
    yield from _table(["rule", "owner"], rows, "No policy is in use.")


def _budgets(review: Review) -> Iterator[str]:
    yield "## Objectives and error budgets"
    yield ""
    if review.budgets is None:
        yield "Prometheus was not asked (`--prometheus URL`)."
        return
    rows = [[one.objective, one.left] for one in review.budgets]
    yield from _table(["objective", "budget left, of 30 days"], rows, "Prometheus has none of the recorded series.")


def _totals(review: Review) -> Iterator[str]:
    yield "## Volume, savings and cost"
    yield ""
    this, before = review.this.total, review.before.total
    rows = [
        [name, f"{getattr(this, field):,}", f"{getattr(before, field):,}"]
        for name, field in (("requests", "num_requests"), ("failed", "num_failed"), ("tokens", "num_output_tokens"))
    ]
    rows.append(["acceptance", share(this.acceptance_rate), share(before.acceptance_rate)])
    rows.append(["device time saved, against the prediction without drafts", saved(this), saved(before)])
    for name, figures in (("", review.this), (" before", review.before)):
        for one in figures.spent:
            paid = "-" if one.amount_paid is None else f"{figure(one.amount_paid, 4)} {one.currency}"
            used = "-" if one.amount_used is None else f"{figure(one.amount_used, 4)} {one.currency}"
            cells = [f"paid {paid}, of it used by requests {used}, {figure(one.held_s / 3600)} h held", ""]
            rows.append(["cost", *(cells if not name else cells[::-1])])
    yield from _table(["", "this period", "the period before"], rows, "")


def _expected(review: Review) -> Iterator[str]:
    yield "## What was expected, and what came"
    yield ""
    rows = [
        [one.what, figure(one.before, 4), figure(one.came, 4), _signed(one.error), figure(one.next, 4)]
        for one in review.expected
    ]
    yield from _table(["", "expected: as before", "came", "difference", "next, by the same change"], rows, "")


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.0f} %"


def _capacity(review: Review) -> Iterator[str]:
    yield "## Capacity"
    yield ""
    rows = [
        ["devices used, of the time that they are held", *(share(review.capacity[when]) for when in ("this", "before"))]
    ]
    yield from _table(["", "this period", "the period before"], rows, "")


def _heads(review: Review) -> Iterator[str]:
    yield "## Draft heads"
    yield ""
    end = review.period.end.timestamp()
    rows = [
        [row.subject, shown_at(row.at), f"{(end - row.at) / DAY_S:.0f} days", row.details]
        for row in review.heads.values()
    ]
    yield from _table(["place", "exchanged (UTC)", "age", "details"], rows, "None was exchanged while servers ran.")


def _drills(review: Review) -> Iterator[str]:
    yield "## Drills"
    yield ""
    rows = [[shown_at(row.at), row.subject, row.who, row.details] for row in review.drills]
    yield from _table(["time (UTC)", "drill", "who", "verdict"], rows, "None was run.")


def _classes(review: Review) -> Iterator[str]:
    yield "## Acceptance by traffic class and proposer"
    yield ""
    this, before = review.this, review.before
    busiest = sorted(this.classes.items(), key=lambda item: -item[1].num_requests)
    rows = []
    for name, one in busiest:
        was = before.classes.get(name)
        rates = [share(one.acceptance_rate), share(was.acceptance_rate if was else None), saved(one)]
        rows.append([name, "all", f"{one.num_requests:,}", f"{one.num_draft_tokens:,}", *rates])
        for (traffic_class, proposer), drafted in sorted(this.proposers.items()):
            if traffic_class == name:
                former = before.proposers.get((name, proposer))
                rates = [share(drafted.acceptance_rate), share(former.acceptance_rate if former else None), ""]
                rows.append(["", proposer, "", f"{drafted.num_draft_tokens:,}", *rates])
    head = ["class", "proposer", "requests", "draft tokens", "acceptance", "before", "saved"]
    yield from _table(head, rows, "No request ended in this period.")


def _failures(review: Review) -> Iterator[str]:
    yield "## Failures"
    yield ""
    counted = sorted(review.this.errors.items(), key=lambda item: -item[1])
    rows = [[code, f"{number:,}", f"{review.before.errors.get(code, 0):,}"] for code, number in counted]
    yield from _table(["error", "this period", "the period before"], rows, "No request failed.")


def _changes(review: Review) -> Iterator[str]:
    yield "## Changes"
    yield ""
    listed, num_earlier = changes_shown(review)
    rows = [[shown_at(row.at), row.what, row.who, row.subject, row.details] for row in listed]
    yield from _table(["time (UTC)", "what", "who", "subject", "details"], rows, "Nothing was changed.")
    if num_earlier:
        yield ""
        yield f"{num_earlier} earlier ones are left out; `prolepsis incident timeline` has all."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], without: str) -> Iterator[str]:
    if not rows:
        yield without
        return
    for row in (columns, ["---"] * len(columns), *rows):
        yield f"| {' | '.join(map(cell, row))} |"
