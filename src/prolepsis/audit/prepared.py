"""Acts that are redacted and ready to get their place in the chain, which is then taken quickly."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from prolepsis.audit.entry import Told, new_salt
from prolepsis.audit.redaction import redacted, redacted_text, storable
from prolepsis.core.audit_event import AuditEvent


@dataclass(frozen=True, slots=True)
class Prepared:
    """An act as its entry will hold it."""

    uid: str
    action: str
    versions: Mapping[str, str]
    told: Told


class PendingAct:
    """An act that is put together only when it is to be written, off everybody's way."""

    def __init__(self, make: Callable[[], AuditEvent]) -> None:
        self._make = make

    @cached_property
    def prepared(self) -> Prepared:
        """The act, made and redacted once, however often writing it is tried."""
        return prepared(self._make())


def prepared(act: AuditEvent) -> Prepared:
    """Return the act redacted; takes milliseconds where it tells much."""
    told = Told(
        actor=storable(act.actor),
        tenant=storable(act.tenant),
        subject=redacted_text(act.subject),
        before=redacted(act.before),
        after=redacted(act.after),
        salt=new_salt(),
    )
    versions = {storable(name): storable(version) for name, version in act.versions.items()}
    return Prepared(act.uid, storable(act.action), versions, told)
