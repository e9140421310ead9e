"""A caller's latency target, by headers."""

import re
from collections.abc import Mapping

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import LatencyTarget

MS_PER_TOKEN, FIRST_TOKEN_MS = "x-target-ms-per-token", "x-target-first-token-ms"
_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")
TARGET_HEADERS = {name: {"type": "number", "exclusiveMinimum": 0} for name in (MS_PER_TOKEN, FIRST_TOKEN_MS)}
"""Their schemas, by their names."""


def requested_target(headers: Mapping[str, str]) -> LatencyTarget:
    """Return the caller's target; raises `InvalidParameter`."""
    return LatencyTarget(_read(headers, MS_PER_TOKEN), _read(headers, FIRST_TOKEN_MS))


def _read(headers: Mapping[str, str], name: str) -> float | None:
    given = headers.get(name)
    if given is None:
        return None
    if not _NUMBER.fullmatch(given) or not float(given):
        raise InvalidParameter(f"{name} is {given[:32]!r}; allowed: 0.001 to 999999.999 (milliseconds)", param=name)
    return float(given)
