"""The pilot report: requests that chance drew for drafts against plain ones, from records; 95 % bounds at all times."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, func, select

from prolepsis.control.cost.comparison import Comparison
from prolepsis.control.cost.meter import NO_PROPOSER, Experiment, RequestCost
from prolepsis.control.statistics.arms import Arm, Histogram, log_evidence_against
from prolepsis.control.statistics.guardrail import Guardrail, evaluate
from prolepsis.control.statistics.judge import UNEVEN_ALPHA
from prolepsis.control.statistics.means import MeanDifference
from prolepsis.control.store.tables import request_records
from prolepsis.core.stats import DeviceSeconds
from prolepsis.core.traffic_sums import Interval, ratio

MOST_REQUESTS = 20_000
MOST_REPORTS = 16
_TAIL = 0.025  # of each bound
_SIDE = case((request_records.c.arm == "canary", "canary"), else_="control").label("side")
_ARMS: tuple[Arm, Arm] = ("canary", "control")
_FORM = Guardrail(name="form", metric="form", measure=MeanDifference(margin=0.0, baseline=1.0), better="higher")
_DEVICE = [*(f"device_{kind}_s" for kind in ("prefill", "plain", "verify", "propose", "host")), "predicted_plain_s"]
_QUANTILES: tuple[tuple[str, float, Callable[[Row[Any]], float | None]], ...] = (
    ("tokens a second of an answer, median", 0.5, lambda row: ratio(row.num_output_tokens, row.total_s)),
    ("end to end, median (s)", 0.5, lambda row: row.total_s),
    ("end to end, 95 % (s)", 0.95, lambda row: row.total_s),
    ("acceptance, median", 0.5, lambda row: ratio(row.num_accepted, row.num_draft_tokens)),
)
_NOTHING = "No request was compared: a rollout draws them, against plain decoding, and a store keeps their records."


@dataclass(frozen=True, slots=True)
class PilotFigure:
    """One quantity on both arms; its change is relative, and of shares the difference."""

    figure: str
    canary: Interval
    control: Interval
    change: Interval
    num_canary: int
    num_control: int


@dataclass(frozen=True, slots=True)
class PilotReport:
    """The comparison of a rollout with the most requests on its smaller arm, in a period from and to Unix times."""

    since_at: float
    until_at: float
    num_requests: int
    rollout: str  # with its run; empty: no request was compared
    share: float  # probability with which chance drew a request for drafts
    figures: list[PilotFigure]
    limits: list[str]  # what the evidence cannot say


def pilot_reports(connection: Connection, since: float, until: float, prices: Mapping[str, float]) -> list[PilotReport]:
    """Return a report on each rollout that was compared in a period, the one with the most evidence first; one that
    says so where none was. `prices`: of a device second, by unit.
    """
    of = request_records.c
    here, by = (of.ended_at >= since) & (of.ended_at < until), (of.rollout_run, of.canary_share)
    counted = connection.execute(select(*by, _SIDE, func.count()).where(here).group_by(*by, _SIDE))
    numbers = Counter({(run, share, arm): number for run, share, arm, number in counted})
    drawn = {(run, share) for run, share, _ in numbers if share is not None}
    empty = PilotReport(since, until, numbers.total(), "", 0.0, [], [_NOTHING])
    evidence = {draw: min(numbers[*draw, arm] for arm in _ARMS) for draw in drawn}
    best = dict(sorted(evidence, key=evidence.__getitem__))  # of each run the share with the most
    largest = sorted(best.items(), key=evidence.__getitem__, reverse=True)[:MOST_REPORTS]
    return [_report(connection, here, draw, prices, empty) for draw in largest] or [empty]


def _report(
    connection: Connection,
    here: ColumnElement[bool],
    draw: tuple[str, float],
    prices: Mapping[str, float],
    empty: PilotReport,
) -> PilotReport:
    of, (run, share) = request_records.c, draw
    chosen = here & (of.rollout_run == run) & (of.canary_share == share)
    sample = select(request_records, _SIDE).where(chosen).order_by(of.record_id).limit(MOST_REQUESTS)  # ids are random
    rows = sorted(connection.execute(sample), key=lambda row: row.ended_at)
    uneven, figures = list(_uneven(rows, share)), list(_figures(rows, share, prices))
    limits = [*uneven, *_limits(rows, figures, empty.num_requests)]
    shown = [replace(figure, change=Interval(None)) for figure in figures] if uneven else figures
    return replace(empty, rollout=run, share=share, figures=shown, limits=limits)


def _figures(rows: Sequence[Row[Any]], share: float, prices: Mapping[str, float]) -> Iterator[PilotFigure]:
    done = [row for row in rows if row.terminal == "finished" and row.num_output_tokens]
    for text, level, value_of in _QUANTILES:
        pairs = [(row.side, value) for row in done if (value := value_of(row)) is not None]
        values = [reduce(Histogram.observe, (x for side, x in pairs if side == arm), Histogram()) for arm in _ARMS]
        canary, control = (_quantile(histogram, level) for histogram in values)
        yield PilotFigure(text, canary, control, _relative(canary, control), values[0].count, values[1].count)
    cost, form = Comparison(Experiment("", 0, 0, share)), _FORM.empty()
    for row in done:
        device = DeviceSeconds(*(getattr(row, name) or 0.0 for name in _DEVICE))
        counts = (row.num_output_tokens, device, max(0, row.num_prompt_tokens - row.num_cached_tokens))
        if device.total:
            cost.observe(RequestCost("", "", NO_PROPOSER, *counts, experiment=cost.experiment, arm=row.side))
        form = form if row.kept_form is None else _FORM.observe(form, row.side, float(row.kept_form))
    of = next(cost.compared())
    change = Interval(*(bound and -bound for bound in (of.saved.estimate, of.saved.upper, of.saved.lower)))
    for unit, price in prices.items():
        per_token = (of.device_s_per_token, of.control_device_s_per_token)
        canary, control = (Interval(seconds and 1e6 * price * seconds) for seconds in per_token)
        text = f"cost of a million tokens ({unit})"
        yield PilotFigure(text, canary, control, change, of.num_canary, of.num_control)
    kept = evaluate(_FORM, form, share, fail_alpha=_TAIL, pass_alpha=_TAIL)
    canary, control = (Interval(mean.mean if mean.count else None) for mean in (form.canary, form.control))
    is_known, text = kept.num_canary and kept.num_control, "structured answers that are valid"
    change = Interval(kept.estimate, kept.lower, kept.upper) if is_known else Interval(None)
    yield PilotFigure(text, canary, control, change, kept.num_canary, kept.num_control)


def _quantile(values: Histogram, level: float) -> Interval:
    """Return a quantile with bounds at half the level of a bound, as two of them bound a ratio."""
    lower, upper = values.bounds(level, _TAIL / 2)
    known = Interval(values.quantile(level), lower, upper if math.isfinite(upper) else None)
    return known if values.count else Interval(None)


def _relative(canary: Interval, control: Interval) -> Interval:
    if canary.estimate is None or not control.estimate or not (control.upper or (canary.upper and control.lower)):
        return Interval(None)
    lower = (canary.lower or 0.0) / control.upper - 1.0 if control.upper else None
    upper = canary.upper / control.lower - 1.0 if canary.upper and control.lower else None
    return Interval(canary.estimate / control.estimate - 1.0, lower, upper)


def _uneven(rows: Sequence[Row[Any]], share: float) -> Iterator[str]:
    """Yield where the mix of the arms contradicts chance, by what was known of requests before it drew."""
    numbers = Counter[tuple[str, Arm]]()
    for row in rows:
        hour, length = int((row.ended_at - row.total_s) // 3600) % 24, 2 ** int(row.num_prompt_tokens).bit_length()
        kinds = ("all", f"model {row.model}", f"route {row.route}", f"class {row.traffic_class}")
        numbers.update((kind, row.side) for kind in (*kinds, f"prompts below {length} tokens", f"hour {hour} UTC"))
    known = sorted({kind for kind, _ in numbers})
    for kind in known:
        canary, control = (numbers[kind, arm] for arm in _ARMS)
        if log_evidence_against(share, canary, canary + control) >= math.log(len(known) / UNEVEN_ALPHA):
            counts = f"{canary} of {canary + control} requests speculate where chance gives {share:.0%}"
            yield f"The mix differs between the arms, so no change is shown: of {kind}, {counts}."


def _limits(rows: Sequence[Row[Any]], figures: Sequence[PilotFigure], num_requests: int) -> Iterator[str]:
    for fig in (item for item in figures if item.change.estimate is None and "acceptance" not in item.figure):
        yield f"Too few requests to compare {fig.figure}: {fig.num_canary} canary, {fig.num_control} control."
    if failed := Counter(row.side for row in rows if row.terminal != "finished"):
        yield f"Not finished, in no figure: {failed['canary']} canary and {failed['control']} control requests."
    if (num_versions := len({(row.policy_version, row.prices_version) for row in rows})) > 1:
        yield f"Policy or prices changed: requests of {num_versions} versions are compared together."
    hours = {int(row.ended_at // 3600) for row in rows}
    covered = f"{len({hour // 24 for hour in hours})} d and {len({hour % 24 for hour in hours})} of 24 hours of the day"
    yield f"Time of day: requests cover {covered}; other times may differ."
    others = f"chance did not draw the others, or with another share, or they are beyond {MOST_REQUESTS}"
    yield f"{len(rows)} of {num_requests} requests are compared{f': {others}' if len(rows) < num_requests else ''}."
    yield "Hardware: records do not say which server answered; chance spread both arms over all of them."
    yield "Both arms share the engines: what a server without any speculation would do is not measured."
    yield "Times count from admission: how long a request waited before it is not in its record."
