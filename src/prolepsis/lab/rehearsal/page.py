"""A forecast as tables, as one file of HTML with pictures, and as the rules of a policy that it recommends."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import yaml

from prolepsis.control.web.drawing import Chart, Line
from prolepsis.core.facts import MEDIUM, SHORT, RequestFacts, traffic_class_of
from prolepsis.core.units import figure
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.rehearsal.check import EACH, FIRST, WHOLE
from prolepsis.lab.rehearsal.forecast import PAYS, ClassGain, LoadForecast, Pair, stops_paying
from prolepsis.lab.rehearsal.trace import TraceLine
from prolepsis.lab.virtual_engine.machine import Machine
from prolepsis.ops.console.render import page_alone

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


class ShownFigure(NamedTuple):
    """A figure of a load and mode."""

    name: str
    unit: str
    read: Callable[[LoadForecast], float]

    def spread(self, by_seed: Sequence[LoadForecast]) -> tuple[float, float, float]:
        """Return the lowest, the median and the highest of all seeds."""
        values = [self.read(forecast) for forecast in by_seed]
        return min(values), median(values), max(values)

    def text(self, by_seed: Sequence[LoadForecast]) -> str:
        """Return the range, or one value where seeds do not differ."""
        return "\u00a0– ".join(dict.fromkeys(figure(value) for value in self.spread(by_seed)[::2]))


def _time(what: str, percent: int) -> ShownFigure:
    return ShownFigure(f"{what} {percent} %", "ms", lambda forecast: 1000.0 * forecast.percentiles[what][f"p{percent}"])


_FIGURES = (
    ShownFigure("at once", "requests", lambda forecast: forecast.num_at_once),
    *(_time(what, percent) for what in (FIRST, EACH, WHOLE) for percent in (50, 95)),
    ShownFigure("goodput", "requests/s", lambda forecast: forecast.goodput),
    ShownFigure("output", "tokens/s", lambda forecast: forecast.tokens_per_second),
    ShownFigure("a pass", "tokens", lambda forecast: forecast.tokens_a_pass),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastPage:
    """A forecast, and what it is of."""

    by_seed: Sequence[Sequence[Pair]]  # seed by seed, for each load
    trace: str  # name of its file; so are the next two
    machine_name: str
    policy: str | None
    requests: Sequence[TraceLine]
    machine: Machine
    goal: LatencyGoal
    price_per_hour: float | None = None

    @property
    def loads(self) -> Sequence[Sequence[Sequence[LoadForecast]]]:
        """Load by load, the forecasts of all seeds: of plain decoding, and with speculation."""
        return [list(zip(*pairs, strict=True)) for pairs in zip(*self.by_seed, strict=True)]

    @property
    def end(self) -> str:
        """Where speculation stops paying, by each seed."""
        ends = [stops_paying(pairs) for pairs in self.by_seed]
        loads = [end.load if end else "none of these loads" for end in ends]
        return "at " + " or ".join(dict.fromkeys(load.replace(" at once", " requests at once") for load in loads))

    @property
    def checked(self) -> str | None:
        """How wrong forecasts of this machine were when they were last checked; None: never checked."""
        errors = [100.0 * abs(error) for check in self.machine.checks.values() for error in check.errors.values()]
        return f"{median(errors):.1f} % in the median figure, at most {max(errors):.0f} %" if errors else None

    @property
    def extrapolated(self) -> float:
        """Highest share of drafts of any load and seed."""
        return max(own.extrapolated for pairs in self.by_seed for _, own in pairs)

    @property
    def classes(self) -> Mapping[str, Sequence[ClassGain]]:
        """What each traffic class gains, by seed and load."""
        every = [own.classes for pairs in self.by_seed for _, own in pairs]
        names = sorted({name for gains in every for name in gains})
        return {name: [gains[name] for gains in every if name in gains] for name in names}

    @property
    def rules(self) -> str | None:
        """A policy with the recommended rules; None: the forecast is of a policy, which has rules of its own."""
        return None if self.policy else policy_text((request.facts() for request in self.requests), self.classes)

    @property
    def figures(self) -> Sequence[ShownFigure]:
        if (price := self.price_per_hour) is None:
            return _FIGURES
        paid = ShownFigure("paid", "a million tokens", lambda load: price / 3600e-6 / max(1e-9, load.tokens_per_second))
        used = ShownFigure("used", "a million tokens", lambda load: price / 3600e-6 * load.device_s_per_token)
        return (*_FIGURES, paid, used)

    def table(self) -> Table:
        """Return a row for each load and mode."""
        arrivals = ShownFigure("arrivals", "requests/s", lambda forecast: forecast.per_second)
        shown = (arrivals, *self.figures, ShownFigure("refused", "", lambda forecast: forecast.num_refused))
        rows = [
            [first.load, first.mode, *(column.text([first, *rest]) for column in shown)]
            for load in self.loads
            for first, *rest in load
        ]
        return ["load", "mode", *(f"{column.name} {column.unit}".strip() for column in shown)], rows

    def class_table(self) -> Table:
        return HEADING, [class_row(*each) for each in self.classes.items()]

    def charts(self) -> Sequence[Chart]:
        """Return each figure against load, with its lowest and highest over seeds as a band."""
        sides = dict(zip(("plain", "speculating"), zip(*self.loads, strict=True), strict=True))
        return [
            Chart(title=fig.name, unit=fig.unit, at=(), lines=[_line(name, fig, side) for name, side in sides.items()])
            for fig in self.figures
        ]

    def html(self) -> str:
        return page_alone("lab/rehearsal/templates/forecast.html", page=self)


def _line(name: str, shown: ShownFigure, loads: Sequence[Sequence[LoadForecast]]) -> Line:
    lowest, middle, highest = zip(*map(shown.spread, loads), strict=True)
    return Line(name, middle, (lowest, highest))


_FORMS: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "free": {"": {"tools": False, "structured_output": "none"}},
    "structured": {"-tools": {"tools": True}, "-structured": {"structured_output": "any"}},
}
"""Conditions of each form, by the end of the rule's name."""
_LENGTHS = {"short": {"max": SHORT}, "medium": {"min": SHORT + 1, "max": MEDIUM}, "long": {"min": MEDIUM + 1}}
HEADING = ["class", "requests", "of these faster", "times faster", "recommended mode"]


def mode_for(gains: Sequence[ClassGain]) -> str:
    """Return the mode for a class: on if it gains in most of the forecasts."""
    return "on" if PAYS * median(gain.speedup for gain in gains) >= 1.0 else "off"


def class_row(name: str, gains: Sequence[ClassGain]) -> list[str]:
    """Return the row of a class under `HEADING`, with the least and the most over the forecasts."""
    shares, speedups = sorted(gain.share for gain in gains), sorted(gain.speedup for gain in gains)
    faster = f"{100 * shares[0]:.0f} – {100 * shares[-1]:.0f} %"
    return [name, str(gains[0].num_requests), faster, f"{speedups[0]:.2f} – {speedups[-1]:.2f}", mode_for(gains)]


def policy_text(requests: Iterable[RequestFacts], classes: Mapping[str, Sequence[ClassGain]]) -> str:
    """Return a policy with rules for the traffic classes of such requests."""
    facts_of = {traffic_class_of(facts): facts for facts in requests}
    rules = [rule for name, gains in classes.items() for rule in _rules(name, facts_of[name], mode_for(gains))]
    return yaml.safe_dump({"version": "rehearsed", "default": {"mode": "off"}, "rules": rules}, sort_keys=False)


def _rules(traffic_class: str, facts: RequestFacts, mode: str) -> Iterator[Mapping[str, object]]:
    _, _, form, context = traffic_class.split("/")
    known = {name: value for name, value in (("route", facts.route), ("tier", facts.tier)) if value}
    for end, conditions in _FORMS[form].items():
        match = {**known, **conditions, "prompt_tokens": dict(_LENGTHS[context])}
        yield {"name": f"{traffic_class.replace('/', '-')[:50]}{end}", "match": match, "mode": mode}
