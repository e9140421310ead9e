"""Applications of a test run share what FastAPI finds out about a route: to do so is most of building one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from fastapi import routing

_populate = routing._populate_api_route_state


@dataclass(frozen=True, slots=True)
class _Known:
    """A route's state, and what it was made of besides its path and the endpoint's code."""

    made_of: tuple[object, ...]
    state: dict[str, Any]


_known: dict[tuple[object, ...], _Known] = {}


def _populate_once(route: Any, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
    """The endpoint is a closure of its application; all else is shared if signature and options are the same."""
    key = (path, *options["methods"], endpoint.__code__)
    made_of = (endpoint.__annotations__, endpoint.__defaults__, options)
    known = _known.get(key)
    if known is None or known.made_of != made_of:
        _populate(route, path, endpoint, **options)
        shared = vars(route) | {"endpoint": None, "dependant": replace(route.dependant, call=None)}
        _known.setdefault(key, _Known(made_of, shared))
        return
    vars(route).update(known.state, endpoint=endpoint, dependant=replace(known.state["dependant"], call=endpoint))


def share() -> None:
    patch.object(routing, "_populate_api_route_state", _populate_once).start()
