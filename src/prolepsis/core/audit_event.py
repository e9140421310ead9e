"""An action that belongs in the audit log, before it has its place there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import uuid4

ACTS = frozenset(
    f"{area}.{act}"
    for area, acts in {
        "audit": "act_unreadable head_invalid head_unsigned",
        "batch": "cancelled completed created expired",
        "breaker": "closed forced_closed forced_open half_open metrics_only open",
        "console": "signed_in signed_out",
        "corpus": "added removed",
        "drift": "benefit_gone cliff divergence drift recovered reset",
        "drill": "fault run",
        "eligibility": "gained lost",
        "exact": "failed passed",
        "file": "deleted",
        "flags": "loaded reloaded removed set",
        "head": "alias_removed alias_set swapped",
        "incident": "snapshot",
        "key": "created revoked",
        "keys": "loaded reloaded",
        "kill": "off on",
        "policy": "applied loaded reloaded rolled_back",
        "prices": "loaded reloaded",
        "recording": "downloaded started stopped",
        "records": "pruned",
        "rehearsal": "checked",
        "replay": "near_tie structural",
        "request": "exported replayed served",
        "response": "cancelled deleted",
        "rollout": "completed gate_reached held promoted resumed rolled_back silence_expired silenced started "
        "stepped_back",
        "server": "started stopped",
        "store": "upgraded",
        "tenant": "forgotten",
        "texts": "erased",
    }.items()
    for act in acts.split()
)
"""All actions, by area. Readers of the log rely on these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One action; `before` and `after` are plain JSON values."""

    actor: str
    """The id of a key, the name of a person, or the part of the system that acted."""
    action: str
    """In the past tense, after its area: policy.reloaded."""
    subject: str = ""
    """The object of the action."""
    before: object = None
    after: object = None
    tenant: str = ""
    """The tenant that it is about; erasing the tenant erases it. Empty: it is about no tenant and is kept."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of software, policy and model, if they matter. They are never erased, so they hold no personal names."""
    names: tuple[str, ...] = ()
    """Other names by which the entry is found, such as the id that a client holds."""
    uid: str = field(default_factory=lambda: uuid4().hex)
    """An event is stored once, however often it is sent."""


SERVER = "server"
"""The actor of events that no person caused."""

Emit = Callable[[AuditEvent], None]
"""Takes an event for the audit log, without waiting for it to be written."""


def discard(event: AuditEvent) -> None:
    """Take an event where there is no audit log."""
