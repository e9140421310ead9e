"""What a rule gives: the terms under which a request may speculate."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from prolepsis.control.audit_terms import AuditTerms
from prolepsis.control.rollout import GuardrailTerms, Percent, RolloutTerms
from prolepsis.control.shape import Part, one_or_more

Mode = Literal["off", "shadow", "on"]
Emit = Literal["block", "token"]
PresetName = Literal["chat", "code", "summarise", "retrieval", "tools", "batch"]


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms in full; the defaults speculate nowhere."""

    mode: Mode = "off"
    """on: where it pays; shadow: drafts are compared with plain decoding, none is verified."""
    proposers: tuple[str, ...] | None = None
    """Those that may draft; None: all that are loaded."""
    num_speculative_tokens: int | None = None
    """Ceiling on drafted tokens a step; None leaves it to the engine."""
    emit: Emit = "block"
    """token: each token leaves alone, evenly paced, so that a stream does not show what was accepted."""
    pinned: bool = False
    """The mode stands whatever a caller asks, for routes that are regulated."""
    shadow_percentage: float = 100.0
    """Share of the requests that draft in shadow, as a mode or at the beginning of a rollout; the others are plain."""
    guardrails: tuple[GuardrailTerms, ...] = ()
    rollout: RolloutTerms | None = None
    audit: AuditTerms | None = None
    """What the audit log keeps of the requests; None leaves it to the server's settings."""


class GivenTerms(Part):
    """Terms as the file gives them; what is not given is the preset's, else the default of `Terms`."""

    use: PresetName | None = None
    """A preset whose terms these begin with."""
    mode: Mode = "off"
    proposers: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1)] | None = None
    emit: Emit = "block"
    pinned: bool = False
    shadow_percentage: Percent = 100.0
    guardrails: Annotated[tuple[GuardrailTerms, ...], BeforeValidator(one_or_more)] = ()
    rollout: RolloutTerms | None = None
    audit: AuditTerms | None = None

    def over(self, base: Terms) -> Terms:
        """Return `base` with what is given here in its place, each field as a whole."""
        values = {f.name: getattr(self if f.name in self.model_fields_set else base, f.name) for f in fields(Terms)}
        return Terms(**values)
