"""Counts and times of requests and proposers: device time, drafts, acceptance, and the mode in effect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from math import inf
from typing import Literal, get_args

from prolepsis.core.continuation import Continued
from prolepsis.core.json_value import JsonValue
from prolepsis.core.reasons import EffectiveReason, LossReason, PlainReason
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.core.requests import AnswerPart
from prolepsis.core.rounds import Round

DeviceKind = Literal["prefill", "plain", "verify", "propose", "host"]
_KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)


@dataclass(slots=True)
class DeviceSeconds:
    """Wall seconds of engine steps, a request's share of each (`engine.accounting`), by kind of work."""

    prefill: float = 0.0  # passes over its prompt, and over tokens computed again after a preemption
    plain: float = 0.0  # passes that decoded: the part that they would take without drafts
    verify: float = 0.0  # time that draft tokens added to these passes
    propose: float = 0.0  # making drafts, and what proposers learn
    host: float = 0.0  # scheduling and committing, while the device waits
    predicted_plain: float = 0.0  # predicted time of plain decoding, by the cost curve; not part of the total

    @property
    def total(self) -> float:
        return self.prefill + self.plain + self.verify + self.propose + self.host

    @property
    def speculation(self) -> float:
        """What it took in addition to its steps without drafts."""
        return self.verify + self.propose

    def by_kind(self) -> dict[DeviceKind, float]:
        """Return the parts of the total."""
        return {kind: getattr(self, kind) for kind in _KINDS}

    def add(self, other: "DeviceSeconds") -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_NAMES = tuple(field.name for field in fields(DeviceSeconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingCounts:
    """Counts of a proposer's drafts, which never fall while it is in its place."""

    num_asked: int = 0  # samples it was asked for, step by step
    num_judged: int = 0
    """Drafts whose first token is known to be right or wrong, whether or not they were verified."""
    num_right: int = 0  # judged drafts that were right
    num_rounds: int = 0  # verified drafts that had tokens of it
    spent: float = 0.0  # cost of drafting and verifying, in tokens that plain decoding emits in that time
    gained: float = 0.0  # tokens of it that were accepted
    gained_squared: float = 0.0  # sum over rounds of the square of what each gained

    def fell_from(self, before: "GrowingCounts") -> bool:
        """Return whether a count is lower than before: these are counts of something else."""
        return any(getattr(self, name) < getattr(before, name) for name in _GROWING)


_GROWING = tuple(field.name for field in fields(GrowingCounts))


@dataclass(frozen=True, slots=True)
class TenantCounts(GrowingCounts):
    """One tenant's part of `TrafficClassCounts`; it begins again if others drafted meanwhile."""

    tenant: str

    def __add__(self, other: "TenantCounts") -> "TenantCounts":
        """Return the counts of both; they are of one tenant."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in _GROWING})


@dataclass(frozen=True, slots=True)
class TrafficClassCounts(GrowingCounts):
    """Counts since the engine started; they only grow, except those in a row."""

    proposer: str
    traffic_class: str
    num_errors: int = 0  # calls that raised, drafts that were nonsense
    errors_in_row: int = 0  # errors since its last valid draft
    num_late: int = 0  # calls that took too long
    late_in_row: int = 0
    num_overdue: int = 0  # calls that were not waited for
    is_lost: bool = False  # one of these has not come back, so the proposer cannot be asked
    tenants: tuple[TenantCounts, ...] = ()  # of the tenants that drafted last: a few


@dataclass(frozen=True, slots=True)
class AcceptanceState(JsonValue):
    """What was learned of how often the drafts of a proposer are accepted; it holds no text.

    Raises `ValueError` for counts that cannot be.
    """

    pool: tuple[float, ...]  # rate and number of trials, over all positions and at each one from the first
    buckets: Mapping[int, tuple[float, ...]]  # likewise, by bucket of drafts

    def __post_init__(self) -> None:
        for values in (self.pool, *self.buckets.values()):
            pairs = [*zip(values[::2], values[1::2], strict=True)]
            if not pairs or not all(0.0 <= rate <= 1.0 and 0.0 <= trials < inf for rate, trials in pairs):
                raise ValueError("allowed: pairs of a rate in [0, 1] and a number of trials")


@dataclass(frozen=True, slots=True)
class ProposerMemory:
    """In bytes; what it shares with the target is not counted."""

    proposer: str
    weights: int = 0
    kv: int = 0  # its own keys and values, allocated permanently, with their hidden states
    index: int = 0  # what it has learned of texts: what it may grow to, where that is bounded
    lent: int = 0  # the part of `kv` that holds pages of sequences now, so that it drafts nothing

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.index


Mode = Literal["off", "shadow", "on"]
PartResult = Literal["emitted", "drafted", "accepted"]


@dataclass(frozen=True, slots=True)
class EffectiveMode:
    """Effect of speculation on a request, with the reason."""

    mode: Mode
    reason: EffectiveReason
    plan_version: int


@dataclass(slots=True)
class ProposerCounts:
    """Counts of one proposer; `per_position[j]` holds [drafted, accepted] of draft position j.

    A position of a merged draft counts for one proposer: who brought the accepted token there, else the likeliest one.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    per_position: list[list[int]] = field(default_factory=list)
    num_cut: int = 0
    """Tokens that verification accepted beyond the sample's end (stop string, grammar): never emitted, and no part of
    `num_accepted`."""
    num_delivered: int | None = None  # accepted tokens that reached the client; None: not known here
    drafting: float = 0.0  # in shadow: what drafting cost, in tokens that plain decoding emits in that time
    verifying: float = 0.0  # in shadow: what verifying would have cost, likewise

    def record(self, drafted: int, accepted: int, first: int = 0) -> None:
        """Count one decided draft whose longest path had `drafted` tokens, `accepted` of them emitted.

        Of a merged draft only the positions from `first` on; the draft itself counts with its position 0.
        """
        self.num_drafts += first == 0
        self.num_draft_tokens += drafted - first
        self.num_accepted += max(0, accepted - first)
        while len(self.per_position) < drafted:
            self.per_position.append([0, 0])
        for j in range(first, drafted):
            self.per_position[j][0] += 1
            self.per_position[j][1] += j < accepted

    def add(self, other: "ProposerCounts") -> None:
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted += other.num_accepted
        self.num_cut += other.num_cut
        self.drafting += other.drafting
        self.verifying += other.verifying
        if other.num_delivered is not None:
            self.num_delivered = (self.num_delivered or 0) + other.num_delivered
        for j, (drafted, accepted) in enumerate(other.per_position):
            if j == len(self.per_position):
                self.per_position.append([0, 0])
            self.per_position[j][0] += drafted
            self.per_position[j][1] += accepted


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A draft whose first token is known to be right or wrong, whether or not it was verified."""

    right: bool
    estimate: float | None  # the chance that the proposer itself gave the token; None: it gave none


def count_draft(proposers: dict[str, ProposerCounts], positions: Sequence[str], num_accepted: int) -> None:
    """Count one decided draft, each position with the proposer named there, so that sums count it once."""
    first = 0
    for name, run in groupby(positions):
        end = first + len(list(run))
        proposers.setdefault(name, ProposerCounts()).record(end, min(num_accepted, end), first)
        first = end


Quality = Literal["unjudged", "ordinary", "copied", "looping", "garbled"]
"""What acceptance says of an answer (`control.health.quality`); unjudged: without drafts, or a norm of its class."""
QUALITIES: tuple[Quality, ...] = get_args(Quality)  # of several answers the last one in this order is shown


@dataclass(frozen=True, slots=True)
class AcceptedRun:
    """Tokens of one sample that were emitted one after another without a rejected draft, or a step without a draft."""

    sample: int = 0
    start: int = 0  # output position of the first of them, from 0
    length: int = 0


@dataclass(slots=True)
class RequestStats:
    """Counts and times (seconds) of one request, over all of its samples."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens whose KV came from the prefix cache
    num_output_tokens: int = 0
    num_continued_tokens: int = 0  # output tokens that another engine had emitted before; no part of those here
    not_exact: tuple[str, ...] = ()
    """Reasons why later tokens may differ from the undisturbed answer's (`Continuation.differences`)."""
    continued: list[Continued] = field(default_factory=list)
    """Each time it lost its engine and went on in another; filled in by what holds its stream."""
    num_steps: int = 0  # target passes that emitted tokens for this request
    num_preemptions: int = 0
    proposers: dict[str, ProposerCounts] = field(default_factory=dict)  # verified drafts by proposer
    longest_run: AcceptedRun = AcceptedRun()
    shadow: dict[str, ProposerCounts] = field(default_factory=dict)
    """Drafts by proposer that were only compared with what plain decoding emitted."""
    inside: dict[AnswerPart, dict[PartResult, int]] = field(default_factory=dict)
    """Tokens by the part of its answer that a step began in, where its terms differ by that."""
    rounds: list[Round] = field(default_factory=list)  # its first ones, if they are kept
    drafts: dict[str, list[RecordedDraft]] = field(default_factory=dict)
    """Its drafts by proposer, in order, if they are recorded."""
    judged: dict[str, list[JudgedDraft]] = field(default_factory=dict)
    """The first judged drafts of its samples, by proposer: a few, as later ones depend on the request."""
    heads: dict[str, str | None] = field(default_factory=dict)
    """NAME@VERSION of the draft heads in use when it began, by proposer; None: exchanged while it ran."""
    plain_steps: dict[PlainReason, int] = field(default_factory=dict)
    """Decoding steps of its samples that might have speculated and did not; others were not to, or computed prompt."""
    lost: dict[LossReason, int] = field(default_factory=dict)
    """Drafted tokens that were accepted and not delivered; filled in by the server, as is `num_delivered`."""
    prediction_accepted: int = 0
    prediction_rejected: int = 0
    receive_s: float = 0.0
    """From its arrival at the server until it asked for admission; filled in by the server, as is `waited_s`."""
    waited_s: float = 0.0  # for admission; the engine's own times count from then on
    queue_s: float = 0.0
    compute_s: float = 0.0
    arrival: float = 0.0  # at the engine, by `time.monotonic`; times count from then on
    first_token_s: float | None = None  # from arrival to the first token
    prefill_s: float = 0.0  # the part of it in which the request ran, 0 without a first token
    total_s: float = 0.0
    device: DeviceSeconds = field(default_factory=DeviceSeconds)
    mode: EffectiveMode = EffectiveMode("off", "no_decode", 0)
    traffic_class: str = ""  # the traffic class for which its drafts are counted
    quality: Quality = "unjudged"  # filled in by the server

    def add(self, other: "RequestStats") -> None:
        """Add what was counted in another engine, or for another prompt: all but its tokens and wall times."""
        for name in ("num_steps", "num_preemptions", "prediction_accepted", "prediction_rejected"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.device.add(other.device)
        for mine, theirs in ((self.proposers, other.proposers), (self.shadow, other.shadow)):
            for proposer, counts in theirs.items():
                mine.setdefault(proposer, ProposerCounts()).add(counts)
        for part, counts_of_part in other.inside.items():
            self.count_inside(part, counts_of_part)
        self.longest_run = max(self.longest_run, other.longest_run, key=lambda run: run.length)
        for reason, steps in other.plain_steps.items():
            self.plain_steps[reason] = self.plain_steps.get(reason, 0) + steps
        for loss, number in other.lost.items():
            self.lost[loss] = self.lost.get(loss, 0) + number

    def count_inside(self, part: AnswerPart, counts: Mapping[PartResult, int]) -> None:
        mine = self.inside.setdefault(part, {})
        for result, number in counts.items():
            mine[result] = mine.get(result, 0) + number

    @property
    def num_drafts(self) -> int:
        return sum(c.num_drafts for c in self.proposers.values())

    @property
    def first_tokens(self) -> tuple[int, int]:
        """Verified drafts whose first token was judged, and those in which it was right."""
        firsts = [counts.per_position[0] for counts in self.proposers.values() if counts.per_position]
        return sum(first[0] for first in firsts), sum(first[1] for first in firsts)

    def is_evidence_of(self, proposer: str, weights: str) -> bool:
        """Return whether all drafts of a proposer were made with `weights` (`engine.client.weights_of`)."""
        head = self.heads.get(proposer, weights)
        return head is not None and (head == weights or weights.startswith(f"{head} "))

    @property
    def num_draft_tokens(self) -> int:
        return sum(c.num_draft_tokens for c in self.proposers.values())

    @property
    def num_accepted(self) -> int:
        return sum(c.num_accepted for c in self.proposers.values())

    @property
    def acceptance_rate(self) -> float | None:
        return self.num_accepted / drafted if (drafted := self.num_draft_tokens) else None

    @property
    def correction_s(self) -> float:
        """Device time of making and verifying draft tokens that were rejected: their share of all of them."""
        rate = self.acceptance_rate
        return 0.0 if rate is None else self.device.speculation * (1.0 - rate)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens emitted per target pass, in [1, K + 1]."""
        return self.num_output_tokens / self.num_steps if self.num_steps else 1.0
