"""An action that belongs in the audit log, before it has its place there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import uuid4


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One action; `before` and `after` are plain JSON values."""

    actor: str  # the id of a key, the name of a person, or the part of the system that acted
    action: str  # in the past tense, after its area: policy.reloaded
    subject: str = ""  # the object of the action
    before: object = None
    after: object = None
    tenant: str = ""
    """The tenant that it is about; erasing the tenant erases it. Empty: it is about no tenant and is kept."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of software, policy and model, if they matter. They are never erased, so they hold no personal names."""
    names: tuple[str, ...] = ()  # other names by which the entry is found, such as the id that a client holds
    uid: str = field(default_factory=lambda: uuid4().hex)  # an event is stored once, however often it is sent


SERVER = "server"
"""The actor of events that no person caused."""

Emit = Callable[[AuditEvent], object]
"""Takes an event for the audit log, without waiting for it to be written."""


def discard(event: AuditEvent) -> None:
    """Take an event where there is no audit log."""
