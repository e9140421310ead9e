"""Who asks: what the front door knows of the caller of one HTTP request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from starlette.requests import HTTPConnection

Role = Literal["client", "viewer", "operator", "auditor", "admin"]
ROLES: tuple[Role, ...] = ("client", "viewer", "operator", "auditor", "admin")


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a checked key; `admin` holds every role."""

    key_id: str
    """The key's public part; empty in development mode."""
    tenant: str
    """What is drafted, cached or counted for one tenant is not visible to another; empty in development mode."""
    roles: frozenset[Role]
    tier: str
    models: frozenset[str] = frozenset()
    """Models the key may use; empty: all that are served."""

    @property
    def actor(self) -> str:
        """Who does something, as the audit log and events name it."""
        return self.key_id or "developer"

    def may_use(self, model: str) -> bool:
        return not self.models or model in self.models

    def has(self, role: Role) -> bool:
        return role in self.roles or "admin" in self.roles


DEVELOPER = Caller(key_id="", tenant="", roles=frozenset(ROLES), tier="standard")
"""The caller where no key is configured and the server listens on a loopback address."""


def caller_of(request: HTTPConnection) -> Caller:
    """Return the caller the front door let in."""
    caller = request.scope.get("state", {}).get("caller")
    assert isinstance(caller, Caller), "the front door runs before every route"
    return caller


SPEC_MODE = "x-spec-mode"


@dataclass(frozen=True, slots=True)
class Asker:
    caller: Caller
    route: str = ""
    """Path of the endpoint."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case; the first of equal names."""

    @property
    def spec_mode(self) -> str | None:
        return self.headers.get(SPEC_MODE)
