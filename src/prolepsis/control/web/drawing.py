"""Figures as plain values for the templates: lines over time, and intervals against a bound."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.core.units import figure

WIDTH, HEIGHT = 600.0, 120.0  # size of a chart in its own coordinates; the style sheet scales it


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity over time; None: there is no value, so the line has a gap."""

    name: str
    values: Sequence[float | None]
    band: tuple[Sequence[float], Sequence[float]] | None = None  # what each value may be at least and at most


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment at which something was changed."""

    at: float  # Unix time
    name: str
    text: str
    path: str  # the page that shows more


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over a common time."""

    title: str
    unit: str
    at: Sequence[float]  # Unix times; none: the lines are over something else
    lines: Sequence[Line]
    top: float | None = None
    """Highest value of the scale; None: what is needed. The lowest is 0, or what is needed below it."""
    marks: Sequence[Mark] = ()
    """Since the beginning of the lines, the oldest first; those behind their end are drawn there."""

    @property
    def is_empty(self) -> bool:
        return not any(value is not None for line in self.lines for value in line.values)

    @property
    def span(self) -> tuple[float, float]:
        """The scale's lowest and highest value."""
        every = [values for line in self.lines for values in (line.values, *(line.band or ()))]
        known = [value for values in every for value in values if value is not None]
        low, high = min([0.0, *known]), max([0.0, *known])
        high = high if self.top is None else max(self.top, high)
        return low, high if high > low else low + 1.0

    @property
    def summary(self) -> str:
        """Description of the chart for people who cannot see it."""
        changes = f"; {len(self.marks)} marked changes, listed below" if self.marks else ""
        return f"{self.title}: {self.latest}{changes}"

    @property
    def latest(self) -> str:
        return ", ".join(f"{line.name} {_latest(line)}" for line in self.lines)

    @property
    def scale(self) -> str:
        low, high = self.span
        return f"{figure(low)} to {figure(high)}"

    def paths(self) -> list[str]:
        return [path_of(line.values, *self.span) for line in self.lines]

    def bands(self) -> list[str]:
        """Return the closed path of each line's band, empty without one."""
        edges = [line.band and [_places(edge, *self.span) for edge in line.band] for line in self.lines]
        return [f"M{' L'.join([*each[1], *reversed(each[0])])} Z" if each else "" for each in edges]

    def places(self) -> list[float]:
        """Return where on the width of the paths each mark is."""
        if not self.marks:
            return []
        whole = (self.at[-1] - self.at[0]) or 1.0
        return [round(WIDTH * min(1.0, (mark.at - self.at[0]) / whole), 1) for mark in self.marks]


def path_of(values: Sequence[float | None], low: float, high: float) -> str:
    """Return the path of a line over its values, with gaps where there are none."""
    parts, pen = list[str](), "M"
    for place, value in zip(_places(values, low, high), values, strict=True):
        if value is not None:
            dot = " h1" if pen == "M" else ""
            parts.append(f"{pen}{place}{dot}")
        pen = "M" if value is None else "L"
    return " ".join(parts)


def _places(values: Sequence[float | None], low: float, high: float) -> list[str]:
    """Return where each value is; one that is None, at the bottom."""
    last = max(1, len(values) - 1)
    heights = (HEIGHT * (1.0 - ((low if value is None else value) - low) / (high - low)) for value in values)
    return [f"{WIDTH * i / last:.1f} {height:.1f}" for i, height in enumerate(heights)]


def _latest(line: Line) -> str:
    value = next((value for value in reversed(line.values) if value is not None), None)
    return "has no values yet" if value is None else f"is {figure(value)} now"


@dataclass(frozen=True, slots=True)
class IntervalPlaces:
    """An estimate with its bounds next to what is allowed, in percent of the width."""

    lower: float
    upper: float
    estimate: float
    allowed: float
    zero: float | None  # None: zero is not within the scale

    @property
    def width(self) -> float:
        return max(0.5, self.upper - self.lower)


def interval(estimate: float, lower: float, upper: float, allowed: float) -> IntervalPlaces:
    """Return the places of four values on one scale that shows all of them, and 0 if it is near."""
    values = sorted((estimate, lower, upper, allowed, 0.0))
    low, high = values[0], values[-1]
    margin = 0.05 * (high - low) or 1.0
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return round(100.0 * (value - low) / (high - low), 2)

    return IntervalPlaces(place(lower), place(upper), place(estimate), place(allowed), place(0.0))
