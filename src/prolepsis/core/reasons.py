"""Why a request speculated or not, why one of its steps was plain, and why a token of a draft did not arrive.

A word means one thing everywhere: in records, replies, metrics, traces, the audit log and the console.
"""

from collections.abc import Mapping
from typing import Literal

_OfSteps = Literal[
    "no_draft",
    "not_worth_it",
    "too_costly",
    "memory_lent",
    "backoff",
    "breaker_open",
    "killed",
    "shadow_budget",
    "decision_failed",
]
PlainReason = Literal[_OfSteps, "no_capacity"]
"""Why a decoding step, which might have speculated, was plain for one sequence."""
OffReason = Literal[
    "requested_off", "rule_off", "no_rule", "not_drawn", "rolled_back", "not_eligible", "flag_off", "no_proposer"
]
"""Why a request came to the engine in mode off."""
OverloadReason = Literal["overload_plain", "overload_batch_waits", "overload_low_refused"]
"""Why load shedding stopped speculation."""
EffectiveReason = Literal[
    "speculating",
    "compared",
    _OfSteps,  # where no draft was verified: the most frequent `PlainReason` of its steps
    OffReason,
    OverloadReason,
    "plan_off",
    "no_decode",
    "overload_shallow",
    "response_cache",
    "replay",
    "not_reported",
    "plain_only",
    "pool_down",
]
"""Why speculation had the effect that it had on a request."""
LimitReason = Literal["unmeasured", "unmeasured_experts", "low_acceptance", "no_saving", "conservative_start"]
"""Why earlier drafts of its traffic class limit a request."""
LossReason = Literal["ended", "stop_string", "policy", "left"]
"""Why a drafted token that verification accepted did not reach the client."""

Judge = Literal["guardrails", "breaker", "drift", "benefit", "eligibility"]
"""What says something of a rule besides its verdict."""

VerdictReason = Literal["pays", "costs_more", "brings_little", "harmed", "few", "chance", "no_control", EffectiveReason]
"""Why a rule's speculation should be kept or stopped, why that is not known, or why it is off."""

STOPPED: frozenset[EffectiveReason] = frozenset(
    {"killed", "plan_off", "overload_plain", "overload_batch_waits", "overload_low_refused", "pool_down"}
)
"""Reasons that say nothing of rule and proposer: how far drafts would have got is not known."""

IN_WORDS: Mapping[EffectiveReason | PlainReason | LimitReason | LossReason | VerdictReason, str] = {
    "speculating": "drafts were verified",
    "compared": "drafts were compared with the plain answer",
    "no_draft": "no proposer had a draft",
    "not_worth_it": "verifying the draft would not have paid",
    "too_costly": "asking proposers would not have paid",  # the costly ones, where no free one had a draft, or any
    "memory_lent": "a proposer's memory was lent to the KV cache, and no other had a draft",
    "backoff": "the proposers back off after failures",
    "breaker_open": "breakers disable the proposers of this class",
    "killed": "the kill switch stops it",  # maybe after drafts had been verified or compared
    "shadow_budget": "the time budget for shadow drafts is used up",
    "decision_failed": "deciding about drafts failed: see the server's log",
    "no_capacity": "there was no room for a draft token",  # in the pass, its pages, or the sequence, which ends
    "requested_off": "the caller turned it off",
    "rule_off": "the policy's rule says off",
    "no_rule": "no rule of the policy matched it, and the default is off",
    "not_drawn": "its rule did not draw it: it is compared, or outside the share",
    "not_eligible": "drafts of its class do not show what the rule requires",
    "flag_off": "a feature flag turned it off",
    "no_proposer": "no proposer that its rule names is loaded",
    "plan_off": "the plan's ceiling is 0",
    "rolled_back": "its rollout was rolled back",  # before it came, or before any draft of it was decided
    "no_decode": "it ended before a step that could have drafted",
    "overload_shallow": "drafts were shorter, as requests waited in the queue",
    "overload_plain": "requests waited too long in the queue",
    "overload_batch_waits": "requests waited too long in the queue; batch work waits",
    "overload_low_refused": "requests waited too long in the queue; low tiers are refused",
    "response_cache": "the answer came from the response cache",
    "replay": "it is a replay",
    "not_reported": "the upstream engine does not say what its drafts brought",
    "plain_only": "upstream engines cannot draft as the request asks",
    "pool_down": "its upstream pool was down, and the other one served it",
    "unmeasured": "too few drafts of its class were seen",
    "unmeasured_experts": "too few drafts of its class were seen, for a mixture of experts under a rule without terms",
    "low_acceptance": "too few draft tokens of its class are accepted",
    "no_saving": "drafts of its class save too little",
    "conservative_start": "drafts are short until more of its class were seen",
    "ended": "it came after the answer's end: stop string, grammar, length",
    "stop_string": "it is part of a stop string, which is not shown",
    "policy": "an output policy rewrote it, held it back or ended the answer before it",
    "pays": "it pays",
    "costs_more": "it costs more than it brings",
    "brings_little": "it brings less than 2 %",
    "harmed": "a guardrail showed harm",
    "few": "too few requests were compared",
    "chance": "what was seen may be chance",
    "no_control": "no requests are drawn to be compared with plain decoding",
    "left": "the client went away, or the request failed",
}
"""Each reason in words."""
