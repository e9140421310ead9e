"""The stream of one request, kept so that another engine can continue it: its tokens, and the figures of its engines.

Pure except for its clock: it asks no engine.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from prolepsis.core.continuation import Continuation, Continued, EngineLoss, OutsideGroup
from prolepsis.core.engine_client import EngineClient, EngineInfo
from prolepsis.core.errors import ProlepsisError, TokensOutOfPlace
from prolepsis.core.events import Aborted, Event, Failed, Finished, Terminal
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats

if TYPE_CHECKING:
    from prolepsis.remote.members import Member


def joined(parts: Sequence[RequestStats]) -> RequestStats:
    """Return the parts as one: counts and seconds add up, the mode is the last's that speculated, else the last's.

    An engine that was lost with its figures is missing from them. A head that some parts had and others had not is
    None: its drafts are evidence of neither.
    """
    total = RequestStats()
    for part in parts:
        total.add(part)
        total.queue_s, total.compute_s = total.queue_s + part.queue_s, total.compute_s + part.compute_s
        total.prefill_s = total.prefill_s or part.prefill_s
        total.rounds += part.rounds
        for name, judged in part.judged.items():
            total.judged.setdefault(name, []).extend(judged)
        for name, drafts in part.drafts.items():
            total.drafts.setdefault(name, []).extend(drafts)
    if parts:
        total.mode = next((part.mode for part in reversed(parts) if part.num_drafts), parts[-1].mode)
        total.num_cached_tokens = parts[0].num_cached_tokens
        heads = {name: {part.heads.get(name) for part in parts} for part in parts for name in part.heads}
        total.heads = {name: labels.pop() if len(labels) == 1 else None for name, labels in heads.items()}
    return total


_SHORTEST_DEADLINE_S = 0.001
"""The deadline of a request whose own deadline has passed meanwhile; the engine refuses it."""


class KeptStream:
    """The tokens that the consumer of one request has, and the facts that another engine needs to continue."""

    def __init__(self, source: GenerateRequest, clock: Callable[[], float]) -> None:
        self.source = source
        self.arrival = clock()
        self.is_aborted = False  # by its consumer, so it is not continued
        self.scope: asyncio.Timeout | None = None
        """The timeout around the wait for its next event; ended to leave an engine that no longer answers."""
        self.losses: list[EngineLoss] = []
        self.info: EngineInfo | None = None
        """Facts about the engine that emitted its last tokens: its group, and its context length, where an answer may
        end. None: there are no tokens."""
        self.is_interrupted = False  # its engine no longer answers: events that were not read yet are dropped
        self.member: Member | None = None  # the place of the engine that served it last
        self.client: EngineClient | None = None  # the engine that serves it now
        self.differences: tuple[str, ...] = ()
        """Reasons why that engine's tokens may differ from those that were to come."""
        self._clock = clock
        self._emitted: list[list[int]] = [[] for _ in range(source.n)]
        self._ended: set[int] = set()
        self._parts: list[RequestStats] = []
        self._continued: list[Continued] = []
        self._not_exact: dict[str, None] = {}
        self._first_token_s: float | None = None
        self._lost: EngineLoss | None = None
        self._shown_at = self.arrival  # when its consumer got the last tokens

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self._emitted))

    @property
    def is_complete(self) -> bool:
        """Every sample has ended; only the terminal event may be missing."""
        return len(self._ended) == self.source.n

    @property
    def left_s(self) -> float | None:
        """Seconds until its deadline; None without one."""
        limit = self.source.deadline_s
        return None if limit is None else max(_SHORTEST_DEADLINE_S, self.arrival + limit - self._clock())

    def next_request(self, outside_group: OutsideGroup) -> GenerateRequest:
        """Return what to ask an engine for: the request itself, or what is left of its time and its tokens."""
        rest = self.source if self.source.deadline_s is None else replace(self.source, deadline_s=self.left_s)
        if self.info is None:
            return rest
        emitted = tuple(tuple(tokens) for tokens in self._emitted)
        continuation = Continuation(emitted=emitted, group=self.info.exact_group, outside_group=outside_group)
        return replace(rest, continue_from=continuation)

    def take(self, event: Event, info: EngineInfo) -> tuple[Event, Continued | None]:
        """Process an event of the engine that `info` is of; return it for the consumer, and the pause that it ends.

        Raises `TokensOutOfPlace` where tokens would be repeated or skipped.
        """
        if isinstance(event, Terminal):
            return self.end(event), None
        tokens = self._emitted[event.index]
        if event.position != len(tokens) or event.index in self._ended:
            where = f"sample {event.index} continues at token {event.position}"
            raise TokensOutOfPlace(f"{where}; allowed: {len(tokens)}, the next one, of a sample that has not ended")
        tokens += event.token_ids
        if event.finish_reason is not None:
            self._ended.add(event.index)
        self.info = info
        if self._first_token_s is None:
            self._first_token_s = self._clock() - self.arrival
        since, self._shown_at = self._shown_at, self._clock()
        if self._lost is None:
            return event, None
        loss, self._lost = self._lost, None
        before = self.num_tokens - len(event.token_ids)
        self._not_exact |= dict.fromkeys(self.differences)
        self._continued.append(Continued(loss=loss, num_tokens=before, pause_s=self._shown_at - since))
        return event, self._continued[-1]

    def lose(self, loss: EngineLoss, part: RequestStats | None = None) -> None:
        """Count the loss of its engine; `part`: the engine's figures, if it still gave them."""
        if part is not None:
            self._parts.append(part)
        self.losses.append(loss)
        self.is_interrupted = False
        self._lost = self._lost or loss

    def end(self, terminal: Terminal) -> Terminal:
        """Return the terminal event with the figures of all engines."""
        return structs.replace(terminal, stats=self.stats(terminal.stats)) if self.losses else terminal

    def stats(self, last: RequestStats | None = None) -> RequestStats:
        """Return the figures of the request over all engines; tokens and times are those that the consumer saw."""
        total = joined([*self._parts, *([last] if last is not None else [])])
        total.num_prompt_tokens = len(self.source.prompt_token_ids)
        total.num_output_tokens = self.num_tokens
        total.continued = list(self._continued)
        total.not_exact = tuple(self._not_exact)
        total.arrival, total.first_token_s = self.arrival, self._first_token_s
        total.total_s = self._clock() - self.arrival
        total.traffic_class = self.source.traffic_class
        return total

    def finished(self) -> Finished:
        """Return the terminal event that a lost engine owes: its samples have all ended."""
        return Finished(self.source.request_id, self.stats())

    def aborted(self, reason: str) -> Aborted:
        return Aborted(self.source.request_id, self.stats(), reason)

    def failed(self, error: ProlepsisError) -> Failed:
        return Failed(self.source.request_id, error, self.stats())
