"""Who may draft for a sequence under a plan that leaves proposers out by traffic class."""

from collections.abc import Sequence

from prolepsis.core.plan import LeftOut, SpecPlan
from prolepsis.spec.ledger import Ledger

Grant = tuple[str, str, int]
"""Proposer, traffic class, number of the probe round."""


class LeavingOut:
    """Keeps count of the probes that plans grant: a grant goes on over plans that repeat it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._granted_at: dict[Grant, int] = {}
        self._plan: SpecPlan | None = None
        self._by_traffic_class: dict[str, list[LeftOut]] = {}

    def allowed(
        self, traffic_class: str, asked: tuple[str, ...] | None, plan: SpecPlan, names: Sequence[str]
    ) -> tuple[str, ...] | None:
        """Return the proposers that may draft: those `asked` for (None: all of `names`) but those left out.

        As `asked` where none is left out.
        """
        if plan is not self._plan:
            self._take(plan)
        entries = self._by_traffic_class.get(traffic_class)
        out = {entry.proposer for entry in entries if not self._probes(entry)} if entries else None
        return asked if not out else tuple(name for name in (names if asked is None else asked) if name not in out)

    def _take(self, plan: SpecPlan) -> None:
        self._plan, self._by_traffic_class = plan, {}
        granted: dict[Grant, int] = {}
        for entry in plan.left_out:
            self._by_traffic_class.setdefault(entry.traffic_class, []).append(entry)
            key = (entry.proposer, entry.traffic_class, entry.probe_round)
            granted[key] = self._granted_at.get(key, self._ledger.num_asked(entry.proposer, entry.traffic_class))
        self._granted_at = granted

    def _probes(self, entry: LeftOut) -> bool:
        """Return whether a probe is left of the entry's grant."""
        if not entry.probes:
            return False
        since = self._granted_at[entry.proposer, entry.traffic_class, entry.probe_round]
        return self._ledger.num_asked(entry.proposer, entry.traffic_class) - since < entry.probes
