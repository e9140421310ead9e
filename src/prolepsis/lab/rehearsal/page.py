"""A forecast as tables, and as one file of HTML with pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from prolepsis.control.web.drawing import Chart, Line
from prolepsis.core.units import figure
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.rehearsal.advice import Advice, advice
from prolepsis.lab.rehearsal.check import EACH, FIRST, WHOLE, figure_of
from prolepsis.lab.rehearsal.forecast import ClassGain, LoadForecast, Pair
from prolepsis.lab.rehearsal.trace import TraceLine
from prolepsis.lab.virtual_engine.machine import Machine
from prolepsis.ops.console.render import page_alone

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


class ShownFigure(NamedTuple):
    """A figure of a load and mode."""

    name: str
    unit: str
    read: Callable[[LoadForecast], float | None]

    def spread(self, by_seed: Sequence[LoadForecast]) -> tuple[float, float, float] | None:
        """Return the lowest, the median and the highest of all seeds; None: too few requests."""
        values = [value for forecast in by_seed if (value := self.read(forecast)) is not None]
        return (min(values), median(values), max(values)) if len(values) == len(by_seed) else None

    def text(self, by_seed: Sequence[LoadForecast]) -> str:
        """Return the range, or one value where seeds do not differ."""
        spread = self.spread(by_seed)
        return "\u00a0– ".join(dict.fromkeys(figure(value) for value in spread[::2])) if spread else "-"


def _time(what: str, percent: int) -> ShownFigure:
    def read(forecast: LoadForecast) -> float | None:
        seconds = forecast.percentiles[what][f"p{percent}"]
        return None if seconds is None else 1000.0 * seconds

    return ShownFigure(f"{what} {percent} %", "ms", read)


FIGURES = (
    ShownFigure("at once", "requests", lambda forecast: forecast.num_at_once),
    *(_time(what, percent) for what in (FIRST, EACH, WHOLE) for percent in (50, 95)),
    ShownFigure("goodput", "requests/s", lambda forecast: forecast.goodput),
    ShownFigure("output", "tokens/s", lambda forecast: forecast.tokens_per_second),
    ShownFigure("tokens a pass", "", lambda forecast: forecast.tokens_a_pass),
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

    @property
    def loads(self) -> Sequence[Sequence[Sequence[LoadForecast]]]:
        """Load by load, the forecasts of all seeds: of plain decoding, and with speculation."""
        return [list(zip(*pairs, strict=True)) for pairs in zip(*self.by_seed, strict=True)]

    @property
    def end(self) -> str:
        """The lightest load at which the median request is no longer faster, and where that is not known."""
        by_load = stops_paying(self.by_seed, len(self.requests), self.machine)
        unknown = [load for load, advised in by_load.items() if advised.mode == "unknown"]
        why = str(by_load[unknown[0]]) if unknown else ""
        if len(unknown) == len(by_load):
            return why
        ends = [load for load, advised in by_load.items() if advised.mode == "off"] or ["none of these loads"]
        end = "at " + ends[0].replace(" at once", " requests at once")
        return f"{end}; at {', '.join(unknown)} {why}" if unknown else end

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
    def advice(self) -> Mapping[str, Advice]:
        """Whether to turn speculation on, by traffic class."""
        beyond = next((own.not_measured for pairs in self.by_seed for _, own in pairs if own.not_measured), None)
        return {name: class_advice(gains, self.machine, beyond) for name, gains in self.classes.items()}

    def table(self) -> Table:
        """Return a row for each load and mode."""
        arrivals = ShownFigure("arrivals", "requests/s", lambda forecast: forecast.per_second)
        shown = (arrivals, *FIGURES, ShownFigure("refused", "", lambda forecast: forecast.num_refused))
        rows = [
            [first.load, first.mode, *(column.text([first, *rest]) for column in shown)]
            for load in self.loads
            for first, *rest in load
        ]
        return ["load", "mode", *(f"{column.name} {column.unit}".strip() for column in shown)], rows

    def class_table(self) -> Table:
        """Return a row for each class, with the least and the most over loads and seeds."""
        rows = []
        for name, gains in self.classes.items():
            shares, speedups = sorted(gain.share for gain in gains), sorted(gain.speedup for gain in gains)
            faster = f"{100 * shares[0]:.0f} – {100 * shares[-1]:.0f} %"
            times = f"{speedups[0]:.2f} – {speedups[-1]:.2f}"
            rows.append([name, str(gains[0].num_requests), faster, times, str(self.advice[name])])
        return ["traffic class", "requests", "of these faster", "times faster", "advice"], rows

    def charts(self) -> Sequence[Chart]:
        """Return each figure against load, with its lowest and highest over seeds as a band."""
        sides = dict(zip(("plain", "speculating"), zip(*self.loads, strict=True), strict=True))
        return [
            Chart(title=fig.name, unit=fig.unit, at=(), lines=[_line(name, fig, side) for name, side in sides.items()])
            for fig in FIGURES
            if all(fig.spread(forecasts) for load in self.loads for forecasts in load)
        ]

    def html(self) -> str:
        return page_alone("lab/rehearsal/templates/forecast.html", page=self)


def _line(name: str, shown: ShownFigure, loads: Sequence[Sequence[LoadForecast]]) -> Line:
    lowest, middle, highest = zip(*filter(None, map(shown.spread, loads)), strict=True)
    return Line(name, middle, (lowest, highest))


def stops_paying(by_seed: Sequence[Sequence[Pair]], num_requests: int, machine: Machine) -> Mapping[str, Advice]:
    """Return by load, the lightest first, whether speculation makes the median request faster."""
    loads: dict[str, Advice] = {}
    for pairs in sorted(zip(*by_seed, strict=True), key=lambda pairs: pairs[0][0].num_at_once):
        times = [[side.percentiles[WHOLE]["p50"] for side in pair] for pair in pairs]
        gains = [plain / own for plain, own in times if plain and own] or [1.0]
        loads[pairs[0][1].load] = advice(num_requests, gains, machine, _END_TO_END, pairs[0][1].not_measured)
    return loads


_END_TO_END = (figure_of(WHOLE, 0.5),)


def class_advice(gains: Sequence[ClassGain], machine: Machine, not_measured: str | None = None) -> Advice:
    """Return the advice for a class, of which the median of the forecasts decides."""
    speedups = [gain.speedup for gain in gains]
    return advice(min(gain.num_requests for gain in gains), speedups, machine, _END_TO_END, not_measured)
