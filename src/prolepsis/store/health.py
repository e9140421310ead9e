"""How the store is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["request", "audit"]
"""What is written behind the scenes."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    ok: bool
    """The last attempt to write went well."""
    detail: str
    """What the last attempt failed with, where it did."""
    num_queued: int
    written: Mapping[Kind, int]
    """On disk, since the start of this process."""
    dropped: Mapping[Kind, int]
    """Lost, since the start of this process."""
