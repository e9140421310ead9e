"""Service level objectives in Sloth's schema (`version: prometheus/v1`), which gets a least number of events."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from prolepsis.core.files import read_text
from prolepsis.core.validation import Part, one_or_more, spelt
from prolepsis.core.yaml_document import InvalidFile, read_shape

WINDOW = "{{.window}}"
"""Where a query has the window that it is evaluated over."""
_LABEL = spelt(r"[a-zA-Z_][a-zA-Z0-9_]*", "letters, digits and underscores, the first no digit")
_NAME = spelt(r"[a-z0-9][a-z0-9_-]{0,62}", "1 to 63 lower-case letters, digits, underscores or dashes")
_ALERT = spelt(r"[A-Z][A-Za-z0-9]*", "letters and digits, the first a capital")
_QUERY = spelt(r"(?s).*\{\{\.window\}\}.*", f"a query with [{WINDOW}]")
Labels = dict[Annotated[str, _LABEL], str]


class Events(Part):
    """Rates of bad events and of all events over the window."""

    error_query: Annotated[str, _QUERY]
    total_query: Annotated[str, _QUERY]


class Raw(Part):
    """The ratio of bad events itself."""

    error_ratio_query: Annotated[str, _QUERY]
    number_query: Annotated[str, _QUERY] | None = None
    """The number of evaluations that the ratio is a mean of. Not in Sloth's schema."""


class Indicator(Part):
    """The indicator: `events` or `raw`."""

    events: Events | None = None
    raw: Raw | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.events is None) == (self.raw is None):
            raise ValueError("allowed: events or raw, one of them")
        return self

    def number(self, window: str, seconds: float) -> str:
        """Return the query of the number of events, or of evaluations, in a window of so many seconds."""
        if self.raw is not None:
            assert self.raw.number_query is not None, "the schema asks for it"
            return self.raw.number_query.replace(WINDOW, window)
        assert self.events is not None, "one of them is given"
        return f"({self.events.total_query.replace(WINDOW, window)}) * {seconds:g}"

    @property
    def ratio(self) -> str:
        """The query of the error ratio over the window: 0 where nothing went wrong yet, no value without events."""
        if self.raw is not None:
            return self.raw.error_ratio_query
        assert self.events is not None, "one of them is given"
        total = self.events.total_query
        return f"(({self.events.error_query}) or 0 * ({total}))\n/\n(({total}) > 0)"


class Alert(Part):
    """One severity of an objective's alert."""

    disable: bool = False
    labels: Labels = Field(default_factory=dict)
    annotations: Labels = Field(default_factory=dict)


class Alerting(Part):
    name: Annotated[str, _ALERT]
    labels: Labels = Field(default_factory=dict)
    annotations: Labels = Field(default_factory=dict)  # `runbook` is the name of a page in console/runbooks
    page_alert: Alert = Alert()
    ticket_alert: Alert = Alert()
    minimum_events: Annotated[float, Field(ge=0)] = 0
    """Fewer events in the long window of an alert are no evidence. Not in Sloth's schema."""
    while_query: str = ""
    """The alerts end where this query has no result: with their cause. Not in Sloth's schema."""


class Objective(Part):
    name: Annotated[str, _NAME]
    description: str
    objective: Annotated[float, Field(gt=0, lt=100)]  # percent of events that have to be good
    labels: Labels = Field(default_factory=dict)
    sli: Indicator
    alerting: Alerting

    @property
    def budget(self) -> float:
        """The share of events that may be bad."""
        return round(1 - self.objective / 100, 9)

    @model_validator(mode="after")
    def _events_can_be_counted(self) -> Self:
        if self.alerting.minimum_events and self.sli.raw is not None and self.sli.raw.number_query is None:
            raise ValueError("alerting.minimum_events needs sli.events, or sli.raw with number_query")
        return self


class Objectives(Part):
    """One file: the objectives of a service."""

    version: Literal["prometheus/v1"]
    service: Annotated[str, _NAME]
    labels: Labels = Field(default_factory=dict)
    slos: Annotated[tuple[Objective, ...], BeforeValidator(one_or_more), Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [slo.name for slo in self.slos]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"allowed: each name once; twice: {', '.join(twice)}")
        return self


class InvalidObjectives(InvalidFile):
    """A file that holds no usable objectives."""

    what = "slos"


def parse_objectives(text: str, name: str) -> Objectives:
    """Return the objectives that `text` holds; `name` names it in errors. Raises `InvalidObjectives`."""
    return read_shape(text, Objectives, InvalidObjectives, name)[0]


def read_objectives(file: Path) -> Objectives:
    """Return the objectives of a file; raises `InvalidObjectives`, and `ConfigError` if it cannot be read."""
    return parse_objectives(read_text(file, "slos"), str(file))
