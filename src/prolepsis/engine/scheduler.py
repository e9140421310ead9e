"""Owns the live requests: which sequences run in the next step, and how a step's result changes them.

A live sequence is running (it holds pages), waiting (it holds none) or, for n > 1, blocked until the first sequence of
its request has computed the prompt. Sequences are ranked by priority, then arrival. A running sequence that needs a
page takes it from a proposer that lends memory, else from the lowest-ranked running one, which then waits and computes
its tokens again: keyed noise keeps its output. Prompts share what a step leaves them in turns (`engine.chunks`), and
while others decode that is little.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from operator import attrgetter

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.errors import (
    ContextTooLong,
    DeadlineExceeded,
    GrammarFailed,
    InvalidGrammar,
    InvalidParameter,
    NotFinite,
    ProlepsisError,
)
from prolepsis.core.events import Aborted, Event, Failed, Finished, Terminal, Tokens
from prolepsis.core.plan import AppliedPlan
from prolepsis.core.recording import NUM_BEYOND
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import JudgedDraft
from prolepsis.engine.accounting import (
    close_stats,
    count_cached,
    count_emitted,
    count_scheduled,
    count_shadow,
    count_started,
    count_stopped,
)
from prolepsis.engine.chunks import MOST_READ, ChunkLimit, ReadingTurns
from prolepsis.engine.containment import Containment
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.ending import Ending, find_ending
from prolepsis.engine.kv.pages import PagePool
from prolepsis.engine.paging import Paging
from prolepsis.engine.request import Request, SequenceState, check_continuation, open_request, take_up
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.shares import BackgroundTurns, LargeRequestGate, mark_spare
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import CompiledGrammar
from prolepsis.engine.text.stream import Detokenizer

_by_rank = attrgetter("rank")
_MOST_OVERTAKEN = 8  # so many younger sequences start before one that is lower by one only; then it comes next
_MOST_SCORED = 64
"""Tokens of prompts whose log-probabilities are computed in one step: each may take as long as its pass does."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Budgets of a step and of a sequence, in sequences and tokens."""

    max_sequences: int
    max_step_tokens: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    scores_prompts: bool = True
    """The runner returns logits of tokens inside of a prompt, and ends one without a sample."""


@dataclass(slots=True)
class _Step:
    budget: int
    gate: LargeRequestGate
    now: float
    rows: dict[str, Row] = field(default_factory=dict)
    preempted: bool = False
    num_scored: int = 0
    num_background: int = 0  # rows of background work; the next is their cached tokens
    background_context: int = 0

    def room(self, sequence: SequenceState) -> int:
        """Return how many tokens of a sequence the step may still compute."""
        return min(self.budget, _MOST_SCORED - self.num_scored) if sequence.is_scoring else self.budget

    def add(self, sequence: SequenceState) -> None:
        row = Row(sequence, sequence.num_computed, min(sequence.num_pending, max(1, self.room(sequence))))
        self.num_scored += len(row.scored)
        self.rows[sequence.key] = row
        sequence.find_part()
        sequence.urgency = sequence.request.urgency(self.now)
        count_scheduled(sequence.request, self.now)
        self.budget -= row.num_tokens
        self._count(row, 1)

    def drop(self, sequence: SequenceState) -> None:
        row = self.rows.pop(sequence.key, None)
        if row is not None:
            self.budget += row.num_tokens
            self._count(row, -1)

    def _count(self, row: Row, sign: int) -> None:
        if row.sequence.is_background:
            self.num_background += sign
            self.background_context += sign * row.start


class Scheduler:
    """Owns every live request. `schedule` picks rows; `commit` changes requests by the sampled tokens."""

    def __init__(
        self,
        limits: SchedulerLimits,
        paging: Paging,
        plan: AppliedPlan,
        detokenizer: Detokenizer | None = None,
        grammars: Grammars | None = None,
        *,
        chunks: ChunkLimit | None = None,
    ) -> None:
        """`plan`: the engine's, named in the stats of requests that end; `chunks` None: they are as large as a step."""
        assert paging.pool.num_pages >= paging.pool.pages_for(limits.max_model_len), "one sequence fits the pool"
        assert min(limits.max_step_tokens, limits.max_sequences) >= 1, "a step has room for a token of a sequence"
        self.limits = limits
        self.plan = plan
        self.contained = Containment()
        self.requests: dict[str, Request] = {}
        self.running: list[SequenceState] = []
        self.waiting: list[SequenceState] = []
        self.max_running = min(limits.max_sequences, limits.max_step_tokens)
        self._paging = paging
        self._detokenizer = detokenizer
        self._grammars = grammars
        self.chunks = chunks or ChunkLimit(0.0, flat_cost())
        self._turns = ReadingTurns()
        self._events: list[Event] = []
        self._ended: list[SequenceState] = []
        self._deadlines: dict[str, float] = {}
        self._serial = 0
        self._background = BackgroundTurns()

    def validate(self, source: GenerateRequest) -> None:
        """Raise `UserError` for a request that cannot be served, naming what was given and what is allowed.

        Reads nothing that changes, so any thread may call it.
        """
        length, longest = len(source.prompt_token_ids), self.limits.max_model_len
        if length + min(1, source.params.max_tokens) > longest:
            raise ContextTooLong.of(
                longest, f"{length} in the prompt, where 1 or more must be left for the answer", param="prompt"
            )
        if length == 0:
            raise InvalidParameter("the prompt has no tokens; allowed: at least 1", param="prompt")
        vocab_size = self.limits.vocab_size
        lowest, highest = min(source.prompt_token_ids), max(source.prompt_token_ids)
        if lowest < 0 or highest >= vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise InvalidParameter(f"the prompt holds token {wrong}; allowed: 0 to {vocab_size - 1}", param="prompt")
        if source.n < 1:
            raise InvalidParameter(f"n is {source.n}; allowed: 1 or more", param="n")
        if source.params.stop and self._detokenizer is None:
            raise InvalidParameter("stop holds strings, but the engine has no tokenizer; allowed: none", param="stop")
        source.params.validate(vocab_size)
        source.validate_size(vocab_size)
        reads_only = source.params.prompt_logprobs is not None or not source.params.max_tokens
        if reads_only and not self.limits.scores_prompts:
            message = "log-probabilities of the prompt, or max_tokens 0, are asked for; allowed: neither by this engine"
            raise InvalidParameter(message, param="prompt_logprobs")
        if source.is_replay and len(source.emitted) != source.n:
            message = f"emitted is of {len(source.emitted)} sequences; allowed: of all {source.n}"
            raise InvalidParameter(message, param="emitted")
        if source.continue_from is not None:
            check_continuation(source, source.continue_from, self.limits.max_model_len, vocab_size)

    def compile(self, source: GenerateRequest) -> CompiledGrammar | None:
        """Return the request's compiled grammar, None if it has none; raises `InvalidGrammar`.

        It may be slow, so threads call it before `submit`, which reuses the result while the caller holds it.
        """
        if source.grammar is None:
            return None
        if self._grammars is None:
            raise InvalidGrammar("a grammar was given, but the engine has no tokenizer; allowed: none")
        return self._grammars.compile(source.grammar)

    def submit(
        self,
        source: GenerateRequest,
        arrival: float,
        *,
        heads: Mapping[str, str] | None = None,
        not_exact: tuple[str, ...] = (),
    ) -> None:
        """Accept a request: from here on it gets exactly one terminal event. Raises `UserError` if it is refused.

        `heads`: labels of the draft heads by proposer; `not_exact`: why its text may differ from that it continues.
        """
        self.validate(source)
        if source.request_id in self.requests:
            raise InvalidParameter(
                f"request_id {source.request_id!r} is in use; allowed: a new one", param="request_id"
            )
        grammar = self.compile(source)
        self._serial += 1
        ends = self.limits.eos_token_ids
        request = open_request(source, arrival, self._serial, ends, self._detokenizer, grammar=grammar)
        if source.continue_from is not None:
            take_up(request, source.continue_from, self.limits.max_model_len, grammar)
        mark_spare(request, self.max_running)
        request.stats.heads.update(heads or {})
        request.stats.not_exact = not_exact
        self.requests[source.request_id] = request
        if request.deadline is not None:
            self._deadlines[source.request_id] = request.deadline
        insort(self.waiting, request.live[0], key=_by_rank)

    def abort(self, request_id: str, reason: str, now: float) -> None:
        """End a request from outside; unknown and ended ones are ignored."""
        request = self.requests.get(request_id)
        if request is not None:
            self._close(request, Aborted(request_id, request.stats, reason), now)

    def take_draft(self, request_id: str, draft: ClientDraft) -> None:
        """Keep what a request's client expects, for its proposer; unknown and ended requests are ignored."""
        request = self.requests.get(request_id)
        if request is not None:
            request.sequences[0].client_draft = draft

    def fail(self, request_id: str, error: ProlepsisError, now: float) -> None:
        """End a request that cannot be served on; unknown and ended ones are ignored."""
        request = self.requests.get(request_id)
        if request is not None:
            self._close(request, Failed(request_id, error, request.stats), now)

    def schedule(self, now: float) -> list[Row]:
        """Return the rows of the next step, without drafts: decoding sequences first, then prompts in turns."""
        for request_id in [request_id for request_id, deadline in self._deadlines.items() if deadline <= now]:
            limit_s = self.requests[request_id].source.deadline_s
            assert limit_s is not None, "it has a deadline"
            self.fail(request_id, DeadlineExceeded.unfinished(limit_s), now)
        self._paging.settle(self.running)
        self._background.begin(self.requests.values(), now)
        gate = LargeRequestGate(self.requests.values(), holds_background=self._background.waits)
        step = _Step(self.limits.max_step_tokens, gate, now)
        for sequence in sorted(self.running, key=lambda s: s.num_pending > 1):
            may_run = sequence.running and not gate.holds(sequence) and self._keeps_short(step, sequence)
            if may_run and self._make_room(sequence, step, now) and sequence.num_pending == 1:
                step.add(sequence)
        if not step.preempted:
            self._admit(step, now)
        self._read(step)
        if step.num_background:
            self._background.ran(now)
        return list(step.rows.values())

    def _keeps_short(self, step: _Step, sequence: SequenceState) -> bool:
        """Return whether a pass that is to be short is so with a sequence that decodes; else it is left out."""
        if sequence.num_pending > 1 or not (self._background.is_short and sequence.is_background):
            return True
        if self.chunks.is_short(step.num_background + 1, step.background_context + sequence.num_computed):
            return True
        step.gate.leave_out(sequence)
        return False

    def attach(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with pages for their drafts; a draft whose pages are not there is dropped, its row stays."""
        return [
            row
            if row.draft is None or self._paging.grow(row.sequence, row.start + row.num_scheduled_tokens)
            else replace(row, draft=None, plain="no_capacity")
            for row in rows
        ]

    def commit(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], now: float) -> None:
        """Advance the rows' sequences by the sampled tokens; None for rows that sampled nothing.

        A request whose grammar gives up, or whose logits are no numbers, fails alone.
        """
        for row, result in zip(rows, sampled, strict=True):
            if row.sequence.ended:  # with its request, when a sequence before it in this step failed
                continue
            if row.start > row.sequence.num_computed:
                with self.contained.of("figures"):
                    count_cached(row)
            if result is not None:
                row.sequence.scores += result.scores
            if result is not None and (result.tokens or result.fault is not None):
                self._take(row, result, now)
                continue
            sequence = row.sequence
            sequence.num_computed = row.start + row.num_tokens
            self._paging.publish(sequence)
            if not sequence.num_pending:  # it is to emit none
                name, scores = sequence.request.request_id, sequence.prompt_logprobs
                self._events.append(Tokens(name, 0, (), 0, finish_reason="length", prompt_logprobs=scores))
                self._end(sequence, now)

    def _take(self, row: Row, result: SampledTokens, now: float) -> None:
        """Commit what a row sampled; its request fails behind the tokens before a fault, as it does without a draft."""
        fault, ending = result.fault, None
        if fault is not None:
            row.sequence.matcher = None  # it has given up, and was not at its end
        try:
            ending = self._accept(row.sequence, result) if result.tokens else None
        except GrammarFailed as error:  # at the last token: its mask has read those before it
            fault, result = error, result.without_last()
        if result.tokens:
            self._commit_tokens(row, result, ending, now)
        if fault is not None and ending is None:
            self.fail(row.sequence.request.request_id, fault, now)

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def take_ended(self) -> list[SequenceState]:
        ended, self._ended = self._ended, []
        return ended

    def abandon(self, error: ProlepsisError, now: float) -> None:
        """Fail every request and leave the pages as they are: their accounting is not to be trusted any more."""
        requests = list(self.requests.values())
        for owner in (self.requests, self.running, self.waiting, self._deadlines):
            owner.clear()
        for request in requests:
            for sequence in request.live:
                sequence.ended = True
                self._ended.append(sequence)
            self._emit_terminal(request, Failed(request.request_id, error, request.stats), now)

    def exchange_head(self, proposer: str) -> None:
        """Forget what the head before left: pages without the new one's states, its name in live requests."""
        self._paging.pool.drop_cached()
        for request in self.requests.values():
            request.stats.heads[proposer] = None

    def count_judged(self, judged: Sequence[tuple[SequenceState, str, JudgedDraft]]) -> None:
        """Count the first drafts of a proposer for a sequence, as its tokens judged them."""
        for sequence, proposer, draft in judged:
            sequence.request.stats.judged.setdefault(proposer, []).append(draft)

    @property
    def pool(self) -> PagePool:
        return self._paging.pool

    @property
    def kv_usage(self) -> float:
        """Share of KV pages, lent ones included, held by sequences, 0 to 1."""
        pool = self._paging.pool
        return pool.num_referenced / (pool.num_pages + pool.num_lent)

    def keep_next(self) -> bool:
        """Write one page of a prompt for the next start; return whether others may be left."""
        return self._paging.kept is not None and self._paging.kept.keep_next()

    def check(self) -> None:
        """Prove that pages and lists agree. Raises `AssertionError` with a sentence."""
        live = [sequence for request in self.requests.values() for sequence in request.live]
        self._paging.pool.check([s.pages for s in live])
        assert {s.key for s in live if s.running} == {s.key for s in self.running}, "running sequences are in the list"
        assert self.running == sorted(self.running, key=_by_rank), "running sequences are ranked"
        assert self.waiting == sorted(self.waiting, key=_by_rank), "waiting sequences are ranked"
        assert not any(s.pages or s.num_computed for s in live if not s.running), "only running sequences hold pages"
        for sequence in live:
            assert not sequence.running or sequence.num_pending > 0, "a running sequence has something to compute"
            held = len(sequence.pages) * self._paging.pool.page_size
            assert not sequence.running or sequence.num_computed <= held, "computed tokens are in pages"

    def _make_room(self, sequence: SequenceState, step: _Step, now: float) -> bool:
        """Get pages for the sequence's tokens, borrowed ones if need be, else preempting lower-ranked sequences.

        Returns False if it is the lowest itself.

        For all of them, as at its start: how many it computes in this step is not known yet.
        """
        while not self._paging.grow(sequence, len(sequence.tokens)):
            if self._paging.borrow():
                continue
            victim = self.running[-1]
            self._preempt(victim, step, now)
            if victim is sequence:
                return False
        return True

    def _admit(self, step: _Step, now: float) -> None:
        """Start waiting sequences while a step has tokens for them, or few prompts are read.

        One page per running sequence is kept back, against thrashing.
        """
        if not self.waiting:
            return
        prompts = [sequence.num_pending for sequence in self._prompts(step)]
        num_prompts, num_tokens = len(prompts), sum(prompts)
        while num_tokens < step.budget or num_prompts < MOST_READ:
            sequence = next((waiting for waiting in self.waiting if not step.gate.holds(waiting)), None)
            while sequence is not None and not self._has_room(sequence):
                sequence = self._displace(step, now)
            if sequence is None:
                return
            self.waiting.remove(sequence)
            self._overtake(sequence)
            self._run(sequence)
            num_prompts, num_tokens = num_prompts + 1, num_tokens + sequence.num_pending

    def _prompts(self, step: _Step) -> list[SequenceState]:
        """Return the running sequences that have no row yet and need not wait for others' requests."""
        return [
            sequence for sequence in self.running if sequence.key not in step.rows and not step.gate.holds(sequence)
        ]

    def _read(self, step: _Step) -> None:
        """Add rows for the tokens of prompts, as many as the step has room and time for."""
        prompts = self._prompts(step)
        if not prompts:
            return
        prompts = self._turns.order(prompts, step.now)
        is_short = self._background.is_short and prompts[0].is_background
        rows, start = list(step.rows.values()), prompts[0].num_computed
        step.budget = self.chunks.max_tokens(rows, start, step.budget, is_short=is_short)
        for prompt in prompts:
            if step.room(prompt) > 0:
                step.add(prompt)
                self._turns.took(prompt)

    def _has_room(self, sequence: SequenceState) -> bool:
        """Get pages for a waiting sequence; False, with nothing changed, if they or a free place lack.

        Lent pages are for what runs, and for what would displace it: else they would soon be full, and kept.
        """
        displaces = bool(self.running) and sequence.request.source.priority < self.running[-1].rank[0]
        reserve = len(self.running)
        return reserve < self.max_running and self._paging.start(sequence, reserve, lent=displaces)

    def _overtake(self, sequence: SequenceState) -> None:
        """Count the start of a sequence before the oldest that waits and is lower by one only, which does not wait for
        ever: else it would while a stream of better priority fills the pages. Spare samples may."""
        priority, arrival, serial, index = sequence.rank
        place = bisect_left(self.waiting, (priority + 1,), key=_by_rank)
        older = next((behind for behind in islice(self.waiting, place, None) if not behind.is_spare), None)
        if older is None or older.rank[0] > priority + 1 or older.rank[1:3] > (arrival, serial):
            return
        older.num_overtaken += 1
        if older.num_overtaken >= _MOST_OVERTAKEN:
            self.waiting.remove(older)
            older.rank = (priority, arrival, serial, index + 1)
            insort(self.waiting, older, key=_by_rank)

    def _displace(self, step: _Step, now: float) -> SequenceState | None:
        """Borrow pages, or preempt the lowest-ranked running sequence, for the first waiting one whose request's
        priority is strictly better, and return that; None if there is none.

        What is lower by one only comes right behind it from then on: clients that come in turn displace it once. It
        displaces nothing for that, and those that may do not wait for it. Spare samples are displaced always.
        """
        if not self.running:
            return None
        victim = self.running[-1]
        for chosen in takewhile(lambda sequence: sequence.rank[0] < victim.rank[0], self.waiting):
            if chosen.request.source.priority < victim.rank[0] and not step.gate.holds(chosen):
                break
        else:
            return None
        if len(self.running) < self.max_running and self._paging.borrow():
            return chosen
        priority, arrival, serial, index = chosen.rank
        if victim.rank[0] == priority + 1 and not victim.is_spare:
            victim.rank = (priority, arrival, serial, index + 1)
        self._preempt(victim, step, now)
        return chosen

    def _run(self, sequence: SequenceState) -> None:
        sequence.running = True
        insort(self.running, sequence, key=_by_rank)
        with self.contained.of("figures"):
            count_started(sequence)

    def _preempt(self, sequence: SequenceState, step: _Step, now: float) -> None:
        step.drop(sequence)
        step.preempted = True
        self._stop(sequence, now)
        sequence.request.stats.num_preemptions += 1
        insort(self.waiting, sequence, key=_by_rank)

    def _stop(self, sequence: SequenceState, now: float) -> None:
        """Take a sequence's pages and its place, wherever it stands."""
        if sequence.running:
            sequence.running = False
            self.running.remove(sequence)
            with self.contained.of("figures"):
                count_stopped(sequence.request, now)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._paging.drop(sequence)

    def _accept(self, sequence: SequenceState, result: SampledTokens) -> Ending | None:
        """Find where the sequence ends and advance its grammar that far; raises `GrammarFailed`."""
        try:
            ending = find_ending(sequence, result.tokens, self.limits.max_model_len)
            if result.difference is not None:
                sequence.differs_at = result.difference.position
            left = sequence.differs_at
            if left is not None and ending is None and sequence.num_output_tokens + 1 - left >= NUM_BEYOND:
                ending = Ending(len(result.tokens), "stop")  # what is shown of a difference is decoded
            if sequence.matcher is not None:
                sequence.matcher.advance(result.tokens[: ending.num_tokens] if ending else result.tokens)
        except Exception as error:
            if sequence.matcher is None or isinstance(error, GrammarFailed):
                raise
            raise GrammarFailed("the grammar could not be followed") from error  # contained: it is one request's alone
        return ending

    def _commit_tokens(self, row: Row, result: SampledTokens, ending: Ending | None, now: float) -> None:
        sequence = row.sequence
        tokens = result.tokens[: ending.num_tokens] if ending else result.tokens
        num_accepted = min(len(result.path), len(tokens))
        position = sequence.num_output_tokens
        sequence.tokens += tokens
        sequence.num_computed = row.start + row.num_tokens + num_accepted
        assert ending or sequence.num_pending == 1, "while decoding, all but the last committed token are computed"
        if sequence.history is not None:
            sequence.history.append(tokens)
        accepted_by: tuple[str, ...] = ()
        with self.contained.of("figures"):
            accepted_by = count_emitted(row, result.path, tokens, now)
            count_shadow(row, tokens, ended=ending is not None)
        self._paging.publish(sequence)
        logprobs = result.logprobs[: len(tokens)] if result.logprobs else None
        reason, stop_reason = (ending.reason, ending.stop_reason) if ending else (None, None)
        self._events.append(
            Tokens(
                sequence.request.request_id,
                sequence.index,
                tuple(tokens),
                position,
                logprobs,
                reason,
                stop_reason,
                row.proposed if sequence.request.source.tells_drafts else None,
                result.difference,
                accepted_by,
                None if position else sequence.prompt_logprobs,
            )
        )
        self._fork(sequence)
        if ending:
            self._end(sequence, now)
        else:
            self._paging.trim(sequence)

    def _fork(self, first: SequenceState) -> None:
        """Let the siblings of a sequence that just computed the prompt run, or wait if there is no place for them."""
        request = first.request
        if request.forked:
            return
        request.forked = True
        for sibling in [sequence for sequence in request.live if sequence is not first]:
            if len(self.running) < self.max_running:
                self._paging.fork(first, sibling)
                self._run(sibling)
            else:
                insort(self.waiting, sibling, key=_by_rank)

    def _end(self, sequence: SequenceState, now: float) -> None:
        """Complete a sequence, and its request if it was the last."""
        self._stop(sequence, now)
        sequence.ended = True
        self._ended.append(sequence)
        request = sequence.request
        if not request.live:
            self._close(request, Finished(request.request_id, request.stats), now)
        elif request.is_large and not sequence.is_spare:
            self._raise_spare(request)

    def _raise_spare(self, request: Request) -> None:
        """Give the place of a sample that ended to the next one of its request, with the request's own rank."""
        sequence = next((spare for spare in request.live if spare.is_spare), None)
        if sequence is None:
            return
        listed = self.running if sequence.running else self.waiting
        is_listed = sequence in listed
        if is_listed:
            listed.remove(sequence)
        sequence.is_spare = False
        sequence.rank = (request.source.priority, request.arrival, request.serial, sequence.index)
        if is_listed:
            insort(listed, sequence, key=_by_rank)

    def _close(self, request: Request, terminal: Terminal, now: float) -> None:
        is_spoilt = isinstance(terminal, Failed) and isinstance(terminal.error, NotFinite)
        for sequence in request.live:
            if is_spoilt:
                self._paging.clear(sequence)
            self._stop(sequence, now)
            sequence.ended = True
            self._ended.append(sequence)
        del self.requests[request.request_id]
        self._deadlines.pop(request.request_id, None)
        self._emit_terminal(request, terminal, now)

    def _emit_terminal(self, request: Request, terminal: Terminal, now: float) -> None:
        """Emit a request's last event: the only place terminal events of accepted requests come from."""
        with self.contained.of("figures"):
            close_stats(request, self.plan.current, now)
        self._events.append(terminal)
