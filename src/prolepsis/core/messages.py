"""Messages that the engine accepts through its inbox, the only way in."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import AcceptanceState
from prolepsis.core.tagged import Tagged


@dataclass(frozen=True, slots=True)
class Submit:
    request: GenerateRequest
    arrival: float  # clock reading (seconds) when the request was accepted; queue time counts from here


class Abort(Tagged, frozen=True):
    """End a request from outside; unknown and ended ids are ignored. Its iterator ends with `Aborted`."""

    request_id: str
    reason: str = "client"


class OfferDraft(Tagged, frozen=True):
    """Let the first sample of a request draft what its client expects; replaces the draft before it.

    Unknown and ended ids are ignored. The draft is valid (`ClientDraft.validate`).
    """

    request_id: str
    draft: ClientDraft


class ApplyPlan(Tagged, frozen=True):
    """Swap the speculation plan between two steps."""

    plan: SpecPlan


class StopRun(Tagged, frozen=True):
    """Decode the requests of a rollout's run plainly from the next step on, later ones included; it stays so."""

    rollout_run: str


class SetCorpora(Tagged, frozen=True):
    """Let the requests of an owner draft from these texts, in place of those before; none: from no text any more."""

    owner: str  # as `owners` names it
    texts: tuple[bytes, ...]  # token ids of the target, 4 bytes each in the machine's order; the newest last


class LearnedAcceptance(Tagged, frozen=True):
    """What an engine learned of a proposer's drafts. Another engine that drafts with the same begins from it."""

    proposer: str
    weights: str  # what it drafts with, as `EngineInfo.weights_of` has it
    state: AcceptanceState


EngineFault = Literal["none", "hang", "slow", "raise", "damage", "differ", "die"]
"""Of proposers: a call does not come back, takes too long, raises. damage: drafts of the head are other tokens than it
meant. differ: answers with drafts get a token that plain decoding does not give. die: the engine ends."""


class InjectFault(Tagged, frozen=True):
    """Fail on purpose, for a drill, in place of the fault before."""

    fault: EngineFault


def owners(tenant: str, traffic_class: str, cache_salt: str) -> tuple[str, str, str]:
    """Return the owners of the texts that a request may draft from: its tenant, its route, and requests of its salt."""
    return f"tenant:{tenant}", f"route:{traffic_class.partition('/')[0]}", f"requests:{cache_salt}"


@dataclass(frozen=True, slots=True)
class SwapHead:
    """Draft with another head from the next step on: the one loaded under `ticket` (`engine.draft_head_slot`)."""

    name: str  # NAME@VERSION, or "none"
    ticket: int
    proposer: HeadProposerName = DRAFT_HEAD


Control = Abort | OfferDraft | ApplyPlan | StopRun | SetCorpora | LearnedAcceptance | InjectFault
"""What a client may send to an engine at any time, without an answer."""

Message = Submit | Control | SwapHead
