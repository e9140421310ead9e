"""The scopes that something on this server has: the kill switch warns of others, which stop nothing."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from prolepsis.core.kill_scope import EVERYTHING, Kind

_SHOWN = 12  # names that a warning lists


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownScopes:
    """Names by kind of scope as they are now: policies and keys change while a server runs."""

    names: Mapping[Kind, Callable[[], Collection[str]]]  # a kind that is absent is not checked

    def warning(self, scope: str) -> str:
        """Return a sentence if nothing here has the scope now, else ""."""
        kind, _, name = scope.partition(":")
        listing = next((names for known, names in self.names.items() if known == kind), None)
        if scope == EVERYTHING or listing is None:
            return ""
        known = sorted(listing())
        # requests decide form and context of traffic classes, so ROUTE/TIER is enough
        if name in known or (kind == "traffic_class" and "/".join(name.split("/")[:2]) in known):
            return ""
        plural = "traffic classes" if kind == "traffic_class" else f"{kind}s"
        listed = ", ".join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")
        return f"nothing on this server has the scope {scope} now; its {plural}: {listed or 'none'}"


ANYTHING = KnownScopes(names={})  # checks nothing
