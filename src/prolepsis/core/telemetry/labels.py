"""Bounds what labels may take: the values of each label, and the label sets of each family of series.

Every label of every series is declared here. A value beyond a label's bound, and a label set beyond its family's, is
counted as `other`, so sums stay right and memory stays bounded. The first values seen keep their names until the
process ends, and they keep them in all families, so that families can be joined.
"""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Literal

OTHER = "other"
NO_TENANT = "default"  # the tenant of callers without one


@dataclass(frozen=True, slots=True)
class Label:
    """The bound on one label's values."""

    most: int  # in all families together if it is open, else in one
    is_open: bool = False
    """Its values come from traffic, policies or files; values of other labels are listed in the code."""


LABELS: Mapping[str, Label] = {
    # what a request is
    "route": Label(160, is_open=True),
    "tier": Label(5),
    "client": Label(16),
    "tenant": Label(0, is_open=True),  # named by `metrics_tenants`
    "rule": Label(64, is_open=True),
    "traffic_class": Label(48, is_open=True),
    **{name: Label(14, is_open=True) for name in ("domain", "language")},
    "verdict": Label(48),
    "arm": Label(4),
    "mode": Label(3),
    "outcome": Label(8),
    "status": Label(24),
    # what speculation did
    "proposer": Label(12),
    "position": Label(32),
    "band": Label(8),
    "reason": Label(40),
    # parts and states
    **{name: Label(16) for name in ("kind", "state", "before", "after", "phase", "stage", "source", "result")},
    **{name: Label(8) for name in ("level", "direction", "decision", "eligible")},
    "device": Label(16),
    "pool": Label(2),
    "exact_group": Label(8, is_open=True),
    "tag": Label(10, is_open=True),  # listed by the price book
    "finish_reason": Label(8),
    "bound": Label(3),
    # what operators name
    **{name: Label(24, is_open=True) for name in ("flag", "variant", "policy", "place", "chain", "condition")},
    **{name: Label(24, is_open=True) for name in ("currency", "price", "version", "error", "label")},
}
"""By name. A label of a new series takes a line here."""


class LabelValues:
    """The values that open labels have taken; safe to use from several threads."""

    def __init__(self, tenants: Sequence[str] = ()) -> None:
        """`tenants` have series of their own."""
        self.num_other: Tally[str] = Tally()
        """By label: how often a value of it was replaced."""
        self._lock = Lock()
        self._known: dict[str, set[str]] = {name: set() for name, label in LABELS.items() if label.is_open}
        self._known["tenant"].update([NO_TENANT, *tenants])
        self._num_tenants = len(self._known["tenant"])

    def most(self, label: str) -> int:
        """Return the bound on the values of a label."""
        return self._num_tenants if label == "tenant" else LABELS[label].most

    def bounded(self, label: str, value: str) -> str:
        """Return the value under which `value` is counted: its own, or `OTHER`."""
        known = self._known.get(label)
        if known is None or value in known:
            return value
        with self._lock:
            if value == OTHER or len(known) < LABELS[label].most:
                known.add(value)
                return value
            self.num_other[label] += 1
        return OTHER

    def counts(self) -> Mapping[str, int]:
        """Return the number of values of each label that has any."""
        return {name: len(known) for name, known in self._known.items() if known}


DEFAULT_SETS = 64  # label sets of a family that declares no bound of its own
NUM_UNUSUAL = 20  # label sets of a family with an unusual value that keep their names
Kind = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """The declaration of one family of series."""

    name: str  # as it is queried; without the suffixes of a histogram
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    most: int | None = None  # bound on its label sets; None: that of the values of its labels
    usual: str = ""  # value of the last label in most label sets; sets with another take no place of sets with it
    size: int = 1  # series of a label set

    def sets(self, values: LabelValues) -> "LabelSets | None":
        """Return the bound on its label sets, None where it has no labels."""
        return LabelSets(values, self) if self.labels and self.kind != "info" else None


class LabelSets:
    """The label sets of one family: some with values as they are, and some of which labels are `OTHER`."""

    def __init__(self, values: LabelValues, family: MetricFamily) -> None:
        """Sets with `OTHER` have series, except of a gauge."""
        self.labels, self._usual = family.labels, family.usual
        unknown = [label for label in self.labels if label not in LABELS]
        assert not unknown, f"labels {unknown} are not declared in core/telemetry/labels.py"
        most_own = min(family.most or DEFAULT_SETS, prod(values.most(label) + 1 for label in self.labels))
        closed = prod(LABELS[label].most for label in self.labels if not LABELS[label].is_open)
        is_open, shows_other = any(LABELS[label].is_open for label in self.labels), family.kind != "gauge"
        num_folded = shows_other * is_open * min(closed, most_own // (16 if self._usual else 8))
        self._most = {"own": most_own, "unusual": NUM_UNUSUAL if self._usual else 0, "folded": num_folded}
        self.most = sum(self._most.values()) + shows_other  # the last set is `OTHER` in all labels
        self._values = values
        self._lock = Lock()
        self._known: set[tuple[str, ...]] = set()
        self._taken: Tally[str] = Tally()

    def bounded(self, given: tuple[str, ...]) -> tuple[str, ...]:
        """Return the set under which `given` is counted: labels that are open are the first to become `OTHER`."""
        if given in self._known:
            return given
        own = tuple(map(self._values.bounded, self.labels, given))
        if self._has_room(own, "unusual" if self._usual and own[-1] != self._usual else "own"):
            return own
        if OTHER not in own:
            self._values.num_other.update(label for label in self.labels if LABELS[label].is_open)
        closed = tuple(OTHER if LABELS[label].is_open else value for label, value in zip(self.labels, own, strict=True))
        return closed if self._has_room(closed, "folded") else (OTHER,) * len(own)

    def forget(self) -> None:
        """Make room: the family shows no series any longer."""
        self._known.clear()
        self._taken.clear()

    def _has_room(self, values: tuple[str, ...], place: str) -> bool:
        with self._lock:
            if values in self._known:
                return True
            if self._taken[place] == self._most[place]:
                return False
            self._known.add(values)
            self._taken[place] += 1
        return True
