"""Applications of a test run share what reads and writes their replies: to make it is most of building one."""

from typing import Any, get_args
from unittest.mock import patch

from fastapi._compat import v2
from pydantic import ConfigDict, TypeAdapter

_made: dict[tuple[object, str], TypeAdapter[Any]] = {}


def _adapter(kind: Any, config: ConfigDict | None = None) -> TypeAdapter[Any]:
    annotation, *metadata = get_args(kind)
    key = (annotation, repr((metadata, config)))
    if key not in _made:
        _made[key] = TypeAdapter(kind, config=config)
    return _made[key]


def share() -> None:
    """FastAPI makes it for each route of each application again, and pydantic keeps none of a dataclass."""
    patch.object(v2, "TypeAdapter", _adapter).start()
