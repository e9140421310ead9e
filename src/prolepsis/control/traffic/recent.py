"""/admin/requests: the last requests with figures and rounds, from memory, and one with what the store has of it."""

import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Literal, get_args

from pydantic import Field

from prolepsis.control.audit.lookup import FoundRequest
from prolepsis.control.audit.routes import found_request, reading
from prolepsis.control.correctness.evidence import AnswerDiff
from prolepsis.control.correctness.runtime import MAX_MISMATCHES, ReplayMismatch
from prolepsis.control.store.records import request_record
from prolepsis.control.store.store import Store
from prolepsis.control.store.tables import NAMES
from prolepsis.control.web.body_reader import read_query
from prolepsis.control.web.caller import Caller, SignedIn
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import FINDERS, Routes
from prolepsis.core.ended import Keep, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.reasons import PlainReason
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.rounds import Round
from prolepsis.core.stages import StageSeconds, stages_of

MAX_RECENT = 512
"""Each has at most `MAX_ROUNDS` rounds of some 310 bytes: about 10 MB, if every request is that long."""
MAX_LISTED_ROUNDS = 2_048
"""In one reply: with those of all requests it would have some 10 MB, so it has about 1 MB at most."""
Order = Literal["newest", "slowest", "least_accepted"]
Finding = Literal["mismatched", "violated"]
"""A replay of it had other tokens; an output policy ended its answer. The last `MAX_MISMATCHES` of each are kept."""


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """One prompt of a request that ended recently; no text."""

    record: dict[str, object]  # with the columns of the store's `request_records`
    facts: dict[str, object]  # those of a policy's facts that are kept
    plain_steps: dict[PlainReason, int]
    rounds: list[Round]  # its first ones
    stages: StageSeconds  # they add up to the time from its arrival until its answer was complete
    stopped_by: list[str]  # names of the output policies that ended its answers
    mismatch: ReplayMismatch | None = None  # if its replay had other tokens
    diff: AnswerDiff | None = None  # where the answers part; null for callers who may not read texts

    @property
    def names(self) -> frozenset[object]:
        return frozenset(self.record[name] for name in NAMES if self.record[name])


@dataclass(frozen=True, slots=True)
class RecentReply:
    requests: list[RecentRequest]
    num_without_rounds: int
    """So many requests, the last ones here, come without their rounds: a reply has `MAX_LISTED_ROUNDS` at most."""


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """A request as memory has it if it ended lately, and as the store has it."""

    requests: list[RecentRequest]
    num_without_rounds: int
    records: list[dict[str, object]]
    audit_entries: list[int]


class RecentQuery(Body):
    """The requests to return."""

    order: Order = "newest"
    only: Finding | None = None
    last: Annotated[int, Field(ge=1, le=MAX_RECENT)] = 50


class RecentFeature(Feature):
    """Belongs to one event loop."""

    name = "recent"

    def __init__(self, store: Store) -> None:
        routes = Routes()

        @routes.get(
            "/admin/requests", roles=FINDERS, summary="The last requests: newest, slowest or least accepted first"
        )
        async def recent(query: Annotated[RecentQuery, read_query(RecentQuery)], caller: SignedIn) -> RecentReply:
            return bounded(_readable(self.ordered(query.order, query.last, query.only), caller))

        @routes.get(
            "/admin/requests/{name}",
            roles=FINDERS,
            summary="Records, rounds and audit entries of a request, by x-request-id, trace id, answer id or entry",
        )
        async def one(name: str, caller: SignedIn) -> KnownRequest:
            stored = FoundRequest([], [])
            try:
                stored = await reading(lambda: found_request(store, name))
            except RequestRefused:  # the store lacks it, or cannot be read
                if not self.named({name}):
                    raise
            names = {name, *(record["request_id"] for record in stored.records)}
            recent = bounded(_readable(self.named(names), caller))
            return KnownRequest(recent.requests, recent.num_without_rounds, stored.records, stored.audit_entries)

        self.routes = routes.all
        self.requests: deque[RecentRequest] = deque(maxlen=MAX_RECENT)
        self.found = {finding: deque[RecentRequest](maxlen=MAX_MISMATCHES) for finding in get_args(Finding)}

    def keeps(self, about: RequestAbout, request: GenerateRequest) -> Keep:
        """Which request a person will ask about, one that was slow or failed, is known at its end only."""
        return Keep.ROUNDS

    def on_request_end(self, ended: RequestEnded) -> None:
        """Keep the figures of a request's prompts."""
        requests = [_recent(ended, prompt) for prompt in ended.prompts]
        self.requests.extend(requests)
        self.found["violated"].extend(request for request in requests if request.stopped_by)

    def on_mismatch(self, ended: RequestEnded, number: int, mismatch: ReplayMismatch, diff: AnswerDiff | None) -> None:
        """Keep a request whose replay had other tokens, also after later ones have replaced it among the last."""
        request = replace(_recent(ended, ended.prompts[number]), mismatch=mismatch, diff=diff)
        request.record["ended_at"] = time.time() - (time.monotonic() - ended.ended_at)
        self.found["mismatched"].append(request)

    def ordered(self, order: Order, last: int, only: Finding | None = None) -> list[RecentRequest]:
        """Return so many requests, those that `order` names first."""
        newest = list(self.found[only] if only else self.requests)[::-1]
        if order == "slowest":
            newest.sort(key=lambda request: -_number(request.record["total_s"]))
        if order == "least_accepted":
            newest = [request for request in newest if request.record["num_draft_tokens"]]
            newest.sort(key=_acceptance)
        return newest[:last]

    def named(self, names: Set[object]) -> list[RecentRequest]:
        """Return the requests that are called so, the oldest first."""
        kept = (*self.found["violated"], *self.found["mismatched"])  # what says more of a request comes last
        found = {request.record["request_id"]: request for request in kept if not names.isdisjoint(request.names)}
        last = [request for request in self.requests if not names.isdisjoint(request.names)]
        last = [found.pop(request.record["request_id"], request) for request in last]
        return [*found.values(), *last]


def bounded(requests: Sequence[RecentRequest]) -> RecentReply:
    """Return the requests with rounds as long as there is room for them."""
    totals = accumulate(len(request.rounds) for request in requests)
    num_whole = sum(total <= MAX_LISTED_ROUNDS for total in totals)
    bare = [replace(request, rounds=[]) for request in requests[num_whole:]]
    return RecentReply([*requests[:num_whole], *bare], len(bare))


def _readable(requests: Sequence[RecentRequest], caller: Caller) -> Sequence[RecentRequest]:
    """Return the requests without their texts, unless the caller may read those of the audit log."""
    return requests if caller.has("auditor") else [replace(request, diff=None) for request in requests]


def _recent(ended: RequestEnded, prompt: PromptEnded) -> RecentRequest:
    record = dict(request_record(ended.about, prompt).row)
    stages = stages_of(prompt, ended.about.arrived, ended.ended_at)
    about = ended.about
    kept = ("route", "model", "tenant", "tier", "tools", "domain", "language", "language_detected")
    facts = {name: getattr(about, name) for name in kept}
    facts |= {"key": about.key_id, "structured_output": about.structured, "stream": about.stream}
    facts |= {"prompt_tokens": prompt.stats.num_prompt_tokens}
    steps, rounds = dict(prompt.stats.plain_steps), list(prompt.stats.rounds)
    return RecentRequest(record, facts, steps, rounds, stages, list(prompt.stopped_by))


def _acceptance(request: RecentRequest) -> float:
    return _number(request.record["num_accepted"]) / _number(request.record["num_draft_tokens"])


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
