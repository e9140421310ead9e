"""What a request may ask of speculation: body field and header read together, held against the caller's roles."""

from dataclasses import dataclass, replace
from typing import get_args

from prolepsis.api.openai.bodies import SpeculationBody
from prolepsis.api.openai.context import SPEC_MODE
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.facts import FlagDecision
from prolepsis.core.requests import SpecMode, SpeculationChoice
from prolepsis.policy.explain import InEffect, Wish, conflict, in_effect
from prolepsis.policy.runtime import Ruling
from prolepsis.web.caller import Caller
from prolepsis.web.errors import RequestRefused

_FOR_OPERATORS = ("on", "shadow")
_DEFAULT = SpeculationBody()


@dataclass(frozen=True, slots=True)
class RequestedSpeculation:
    choice: SpeculationChoice
    emit_tokens: bool
    """Each token leaves in a chunk of its own."""
    metrics: bool
    wish: Wish
    ruling: Ruling | None = None
    """The policy's; None where there is no policy."""
    flag: FlagDecision | None = None
    """The flag's; None where no flags are asked."""

    @property
    def known_at_start(self) -> str:
        """What a stream's header can say of the mode before the first step."""
        if not self.choice.enabled:
            return f"mode=off;reason={self.choice.off_reason}{self.ruled_by}"
        return f"mode={'shadow' if self.choice.mode == 'shadow' else 'auto'};reason=undecided{self.ruled_by}"

    @property
    def ruled_by(self) -> str:
        """What headers add of policy, rollout and flag."""
        told = f";rule={self.ruling.rule};policy={self.ruling.policy_version}" if self.ruling else ""
        if self.ruling and (assignment := self.ruling.assignment):
            told += f";rollout={assignment.rollout_id};arm={assignment.arm}"
        flags = (*(self.ruling.flags if self.ruling else ()), *((self.flag,) if self.flag else ()))
        return told + "".join(f";flag={flag.shown}" for flag in flags)

    @property
    def is_evidence(self) -> bool:
        """Whether the request counts for its rule's rollout: neither caller nor flag narrows what it was assigned."""
        wish = self.wish
        as_given = wish.mode == "auto" and wish.max_depth is None and wish.proposer is None
        return as_given and self.choice.off_reason != "flag_off"


def requested_speculation(
    body: SpeculationBody | None, header: str | None, caller: Caller, proposers: tuple[str, ...]
) -> RequestedSpeculation:
    """Return what is asked; raises `InvalidParameter`, or `RequestRefused` (403) naming what a role is missing for."""
    given = body or _DEFAULT
    mode = _mode(given.mode, header)
    named = ("speculation.mode" if given.mode else SPEC_MODE, mode if mode in _FOR_OPERATORS else None)
    for field, value in (
        named,
        ("speculation.max_depth", given.max_depth),
        ("speculation.proposer", given.proposer),
    ):
        if value is not None and not caller.has("operator"):
            message = f"{field} needs the role operator; your key has: {', '.join(sorted(caller.roles)) or 'none'}"
            raise RequestRefused(message, code="insufficient_permissions", param=field, status=403)
    _check_proposer(given.proposer, proposers)
    emit = given.emit if "emit" in given.model_fields_set else None
    wish = Wish(mode, given.max_depth, given.proposer, emit)
    return RequestedSpeculation(_choice(given, mode), given.emit == "token", given.metrics, wish)


def under_policy(asked: RequestedSpeculation, ruling: Ruling, targeting_key: str) -> RequestedSpeculation:
    """Return what takes effect under the policy; raises `RequestRefused` (403) where the wish contradicts it."""
    against = conflict(ruling.rule, ruling.terms, asked.wish)
    if against is not None:
        raise RequestRefused(against.message, code="policy_conflict", param=against.param, status=403)
    terms, assignment = ruling.terms, ruling.assignment
    if assignment is not None:
        terms = replace(terms, mode=assignment.mode, shadow_percentage=100.0)
    effect = in_effect(ruling.rule, terms, asked.wish, targeting_key)
    drafts_by_rollout = assignment is not None and effect.sources["mode"] == "policy" and effect.mode != "off"
    choice = replace(
        _ruled(effect), rollout_run=assignment.rollout_run if assignment is not None and drafts_by_rollout else ""
    )
    return replace(asked, choice=choice, emit_tokens=effect.emit == "token", ruling=ruling)


def under_flag(asked: RequestedSpeculation, flag: FlagDecision) -> RequestedSpeculation:
    """Return what takes effect once the flag has had its say: it turns off what caller and policy left on."""
    if flag.value or not asked.choice.enabled:
        return replace(asked, flag=flag)
    return replace(asked, choice=replace(asked.choice, mode="off", off_reason="flag_off"), flag=flag)


def _ruled(effect: InEffect) -> SpeculationChoice:
    by_policy = effect.mode == "off" and effect.sources["mode"] != "caller"
    return SpeculationChoice(
        mode="auto" if effect.mode == "on" and not effect.forced else effect.mode,
        off_reason="policy_off" if by_policy else "requested_off",
        num_speculative_tokens=effect.num_speculative_tokens,
        proposers=effect.proposers,
    )


def _mode(in_body: SpecMode | None, header: str | None) -> SpecMode:
    modes: tuple[SpecMode, ...] = get_args(SpecMode)
    in_header = next((mode for mode in modes if mode == header), None)
    if header is not None and in_header is None:
        raise InvalidParameter(f"{SPEC_MODE} is {header[:64]!r}; allowed: {', '.join(modes)}", param=SPEC_MODE)
    if in_header is not None and in_body is not None and in_header != in_body:
        message = f"speculation.mode is {in_body!r} and {SPEC_MODE} is {in_header!r}; allowed: one, or equal values"
        raise InvalidParameter(message, param="speculation.mode")
    return in_body or in_header or "auto"


def _check_proposer(proposer: str | None, known: tuple[str, ...]) -> None:
    if proposer is not None and proposer not in known:
        message = f"speculation.proposer is {proposer[:64]!r}; allowed: {', '.join(known) or 'none is loaded'}"
        raise InvalidParameter(message, param="speculation.proposer")


def _choice(body: SpeculationBody, mode: SpecMode) -> SpeculationChoice:
    return SpeculationChoice(
        mode="off" if body.max_depth == 0 else mode,
        num_speculative_tokens=body.max_depth,
        proposers=None if body.proposer is None else (body.proposer,),
    )
