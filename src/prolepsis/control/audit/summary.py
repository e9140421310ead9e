"""The short summary of an audit entry: the fields that changed, the most important first, and the reason."""

import re
from collections.abc import Iterator, Mapping, Sequence

from prolepsis.core.units import figure

_NOT_DETAILS = frozenset(
    {
        "at",
        "by",
        "actor",
        "kind",
        "flag",
        "rollout_id",
        "asked",
        "policy_version",
        "traffic_class",
        "proposer",
        "$schema",
    }
)
"""Fields that are shown in another column, or that no reader of a table needs."""
_FIRST = ("on", "state", "before", "after", "reason", "stage", "version", "acceptance")
_DIGEST = re.compile(r"[0-9a-f]{32,}")


def changed_fields(before: object, after: object) -> Iterator[str]:
    """Yield each field of `after` that differs from `before`; for the kill switch also the scopes and the reason.

    Fields that hold more than one value are left out.
    """
    was = before if isinstance(before, Mapping) else {}
    if not isinstance(after, Mapping):
        return
    yield from _scopes(was.get("killed"), after.get("killed"))
    if "killed" in after and (reason := reason_of(before, after)):
        yield f"reason {reason}"
    names = sorted(after, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    for name in names:
        value = after[name]
        is_shown = name in _NOT_DETAILS or (name == "reason" and "killed" in after)
        if is_shown or not isinstance(value, str | int | float) or value in ("", was.get(name)):
            continue
        earlier = was.get(name)
        change = f"{_value(earlier)} -> " if isinstance(earlier, str | int | float) else ""
        yield f"{name} {change}{_value(value)}"


def version_words(versions: Mapping[str, str]) -> Iterator[str]:
    """Yield the versions of a server, the software and the model first."""
    for name in sorted(versions, key=lambda name: (name != "prolepsis", name != "model", name)):
        if versions[name]:
            yield f"{name} {versions[name]}"


def reason_of(before: object, after: object) -> str:
    """Return the reason that a person gave, empty without one. What follows the controls file has it with the scope."""
    if not isinstance(after, Mapping):
        return ""
    if "killed" not in after or after.get("reason"):
        return str(after.get("reason", ""))
    known = list(_parts(before))
    reasons = [str(part["reason"]) for part in _parts(after) if part not in known and part.get("reason")]
    return reasons[0] if reasons else ""


def _scopes(was: object, now: object) -> Iterator[str]:
    if isinstance(was, Sequence) and isinstance(now, Sequence):
        stopped, released = sorted(set(now) - set(was)), sorted(set(was) - set(now))
        if stopped:
            yield f"stopped {', '.join(stopped)}"
        if released:
            yield f"released {', '.join(released)}"


def _parts(status: object) -> Iterator[Mapping[str, object]]:
    """Yield what a status of the kill switch holds with a reason each."""
    if isinstance(status, Mapping):
        yield from status.get("operator", ())
        yield from status.get("shared", ())
        yield status.get("released") or {}


def _value(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return figure(value, 4)
    return _DIGEST.sub(lambda match: match[0][:12], str(value))
