"""A caller's request about speculation: read from body and header, checked against roles, answered in headers."""

from collections.abc import Mapping
from typing import get_args

from prolepsis.control.policy.decision import Conflict, Decision, SpeculationRequest
from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import SpecMode
from prolepsis.server.preparing.bodies import SpeculationBody
from prolepsis.server.preparing.prepared import SPEC_LEARN, SPEC_MODE

_FOR_OPERATORS = ("always", "shadow")
_DEFAULT = SpeculationBody()


def mode_at_start(decision: Decision) -> str:
    """Return the header of a stream: what is known of the mode before the first step."""
    if not decision.choice.enabled:
        return f"mode=off;reason={decision.choice.off_reason}{decided_by(decision)}"
    mode = "shadow" if decision.choice.mode == "shadow" else "auto"
    return f"mode={mode};reason=undecided{decided_by(decision)}"


def decided_by(decision: Decision) -> str:
    text = f";rule={decision.rule};policy={decision.policy_version}" if decision.rule is not None else ""
    if decision.assignment is not None:
        text += f";rollout={decision.assignment.rollout_id};arm={decision.assignment.arm}"
    if decision.limited_by:
        text += f";limit={','.join(decision.limited_by)}"
    return text + "".join(f";flag={flag.shown}" for flag in decision.flags)


def requested_speculation(
    body: SpeculationBody | None, headers: Mapping[str, str], caller: Caller, proposers: tuple[str, ...]
) -> SpeculationRequest:
    """Return the caller's request; raises `InvalidParameter`, or `RequestRefused` (403) for a missing role."""
    given = body or _DEFAULT
    mode = _mode(given.mode, headers.get(SPEC_MODE))
    named = ("speculation.mode" if given.mode else SPEC_MODE, mode if mode in _FOR_OPERATORS else None)
    for field, value in (named, ("speculation.max_depth", given.max_depth), ("speculation.proposer", given.proposer)):
        if value is not None and not caller.has("operator"):
            message = f"{field} needs the role operator; your key has: {', '.join(sorted(caller.roles)) or 'none'}"
            raise RequestRefused(message, code="insufficient_permissions", param=field, status=403)
    if given.proposer is not None and given.proposer not in proposers:
        allowed = ", ".join(proposers) or "none is loaded"
        message = f"speculation.proposer is {given.proposer[:64]!r}; allowed: {allowed}"
        raise InvalidParameter(message, param="speculation.proposer")
    emit = given.emit if "emit" in given.model_fields_set else None
    learns = _learns(given.learn, headers.get(SPEC_LEARN))
    return SpeculationRequest(mode, given.max_depth, given.proposer, emit, given.metrics, learns)


def check_allowed(decision: Decision | Conflict) -> Decision:
    """Return the decision; raises `RequestRefused` (403) for a conflict with the policy."""
    if isinstance(decision, Conflict):
        raise RequestRefused(decision.message, code="policy_conflict", param=decision.param, status=403)
    return decision


def _mode(in_body: SpecMode | None, header: str | None) -> SpecMode:
    modes: tuple[SpecMode, ...] = get_args(SpecMode)
    in_header = next((mode for mode in modes if mode == header), None)
    if header is not None and in_header is None:
        raise InvalidParameter(f"{SPEC_MODE} is {header[:64]!r}; allowed: {', '.join(modes)}", param=SPEC_MODE)
    if in_header is not None and in_body is not None and in_header != in_body:
        message = f"speculation.mode is {in_body!r} and {SPEC_MODE} is {in_header!r}; allowed: one, or equal values"
        raise InvalidParameter(message, param="speculation.mode")
    return in_body or in_header or "auto"


def _learns(in_body: bool | None, header: str | None) -> bool:
    """Return whether the caller agrees: somewhere a yes, and nowhere a no."""
    if header not in (None, "yes", "no"):
        raise InvalidParameter(f"{SPEC_LEARN} is {header[:64]!r}; allowed: yes, no", param=SPEC_LEARN)
    return in_body is not False and header != "no" and (in_body or header == "yes")
