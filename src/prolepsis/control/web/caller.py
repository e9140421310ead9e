"""The caller of an HTTP request, as sign-in identified it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends
from starlette.requests import HTTPConnection, Request

from prolepsis.core.audit_event import AuditEvent

Role = Literal["client", "viewer", "operator", "auditor", "admin"]
ROLES: tuple[Role, ...] = ("client", "viewer", "operator", "auditor", "admin")


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a checked key; `admin` holds every role."""

    key_id: str  # the key's public part; empty in development mode
    tenant: str  # drafts, caches and counts of one tenant are not visible to another; empty in development mode
    roles: frozenset[Role]
    tier: str
    models: frozenset[str] = frozenset()  # models the key may use; empty: all that are served
    budget: str = ""  # what its requests may cost, by a name for policies; empty: requests declare it themselves

    @property
    def actor(self) -> str:
        """Name of the caller in the audit log and in events."""
        return self.key_id or "developer"

    def act(self, action: str, subject: str) -> AuditEvent:
        """Return the audit event of what the caller does for its tenant."""
        return AuditEvent(actor=self.actor, action=action, subject=subject, tenant=self.tenant)

    def may_use(self, model: str) -> bool:
        return not self.models or model in self.models

    def has(self, role: Role) -> bool:
        return role in self.roles or "admin" in self.roles


DEVELOPER = Caller(key_id="", tenant="", roles=frozenset(ROLES), tier="standard")
"""The caller where no key is configured and the server listens on a loopback address."""


def caller_of(request: HTTPConnection) -> Caller:
    """Return the caller that sign-in found."""
    caller = request.scope.get("state", {}).get("caller")
    assert isinstance(caller, Caller), "sign-in runs before every route"
    return caller


async def _known(request: Request) -> Caller | None:
    caller = request.scope.get("state", {}).get("caller")
    return caller if isinstance(caller, Caller) else None


Known = Annotated[Caller | None, Depends(_known)]
"""The caller, as parameter of an open route; None: it named no key."""


async def _signed_in(request: Request) -> Caller:
    return caller_of(request)


SignedIn = Annotated[Caller, Depends(_signed_in)]  # the caller, as parameter of a route
