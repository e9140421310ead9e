"""Digests of plain values: the same value has one text, and one digest."""

import json
from hashlib import sha256


def canonical(value: object) -> str:
    """Return canonical JSON: keys sorted, no spaces, ASCII; raises ValueError for values that JSON cannot express."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: object) -> str:
    """Return the SHA-256 of the canonical JSON, hexadecimal."""
    return sha256(canonical(value).encode()).hexdigest()


def whole_numbers(text: str | None) -> tuple[int, ...]:
    """Return the numbers in a JSON list; of any other text a number that nothing has, so that no digest matches."""
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return (0,)
    return tuple(found) if isinstance(found, list) and all(type(one) is int for one in found) else (0,)
