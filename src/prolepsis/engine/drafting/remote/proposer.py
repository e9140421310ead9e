"""Proposes what another process or machine drafts, without waiting for it: `prolepsis propose-server`.

Each call sends what was committed since the last one and takes what has arrived. The server drafts while the target's
pass runs, so a draft is behind by the tokens of a step or more: what was committed since is followed down it, and what
is left is proposed. It is kept and used piece by piece; the server is asked again when less than `ahead` tokens are
left, and more rarely where its drafts are of no use. A server that is late, lost or hostile costs drafts, never a step.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from prolepsis.core.codec import ProtocolError
from prolepsis.core.handshake import SharedKey
from prolepsis.core.rounds import RemoteOutcome, RemoteRounds
from prolepsis.engine.drafting.draft import ROOT, Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.remote.link import Connection, ConnectionLost, Link
from prolepsis.engine.drafting.remote.messages import (
    FROM_ENGINE,
    MOST_NODES,
    SCOPE_BYTES,
    SILENT_S,
    DraftCall,
    Drafts,
    Extend,
    Forget,
    Open,
    ProposeLimits,
    SentDraft,
)

_LONGEST_BACKOFF = 256  # rounds without waiting, after rounds in which waiting brought no draft
_PATIENCE = 4
"""Useless drafts in a row that a sequence may have; then it asks every second token, then every fourth, ..."""
_LONGEST_PAUSE = 8
_MOST_BUCKETS = 256  # calibration buckets that a server's drafts may use


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How far ahead, and how patiently."""

    ahead: int = 16  # tokens that drafts should reach ahead; with fewer left the server is asked again
    wait_s: float = 0.0
    """That a call may wait for a sequence without a draft. Above 0 the proposer is a costly one: it is asked where the
    time it takes pays."""


@dataclass(frozen=True, slots=True)
class _Round:
    number: int
    sent_at: float
    sequences: tuple[int, ...]


class DraftsAhead:
    """The drafts of one sequence that were made ahead: kept while they agree with what is committed, used in pieces.

    A draft arrives behind an older prefix. What was committed since is followed down its tree: what lies below is a
    draft for now. Each draft has one outcome, counted in `outcomes` where it is decided.
    """

    def __init__(self, outcomes: Counter[RemoteOutcome]) -> None:
        self._outcomes = outcomes
        self._arrived: list[tuple[int, Draft]] = []
        self._draft: Draft | None = None
        self._prefix = 0
        self._is_used = False

    def put(self, prefix: int, draft: Draft) -> None:
        self._arrived.append((prefix, draft))

    def get(self, tokens: Sequence[int]) -> Draft | None:
        """Return the newest draft that follows all `tokens`, or None. It stays here."""
        number = len(tokens)
        if self._draft is not None and self._prefix < number:
            left = self._draft.after(tokens[self._prefix :])
            if left is None and not self._is_used:
                self._outcomes["stale"] += 1
                self._is_used = True  # it is counted
            if left is not None and left.tokens:
                self._draft, self._prefix = left, number
            else:
                self.drop()
        for prefix, draft in self._arrived:
            left = draft.after(tokens[prefix:])
            if left is None:
                self._outcomes["stale"] += 1
            elif not left.tokens:
                self._outcomes["late"] += 1
            else:
                self.drop()
                self._draft, self._prefix, self._is_used = left, number, False
        self._arrived.clear()
        return self._draft

    def use(self) -> None:
        if not self._is_used:
            self._is_used = True
            self._outcomes["used"] += 1

    def drop(self) -> None:
        if self._draft is not None and not self._is_used:
            self._outcomes["late"] += 1
        self._draft = None

    def end(self) -> None:
        self._outcomes["late"] += len(self._arrived)
        self._arrived.clear()
        self.drop()


@dataclass(slots=True)
class _OpenSequence:
    number: int
    num_reserved: int  # tokens of the server that are reserved for it
    ahead: DraftsAhead
    num_sent: int = 0
    num_asked: int = 0  # tokens that it had when drafts were last asked for
    num_vain: int = 0  # drafts asked for since one was used

    def is_due(self, num_tokens: int) -> bool:
        """Return whether to ask again with so many tokens: text without drafts shall cost little."""
        pause = min(_LONGEST_PAUSE, 1 << max(0, self.num_vain - _PATIENCE))
        return num_tokens - self.num_asked >= (pause if self.num_asked else 1)


class RemoteProposer(Proposer):
    """Proposes the drafts of the server behind `link`. Memory: a draft of at most `MOST_NODES` for each sequence."""

    name = "remote"
    one_pass = True

    def __init__(
        self,
        link: Link,
        key: SharedKey,
        vocab_size: int,
        settings: RemoteSettings | None = None,
        *,
        observe: Callable[[RemoteRounds], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`observe` is called with rounds, from the engine's thread."""
        self._settings = settings or RemoteSettings()
        self.free = self._settings.wait_s <= 0.0
        self._link = link
        self._key = key
        self._vocab_size = vocab_size
        self._observe = observe
        self._clock = clock
        self._connection: Connection | None = None
        self._sequences: dict[str, _OpenSequence] = {}
        self._by_number: dict[int, _OpenSequence] = {}
        self._num_reserved = 0
        self._num_opened = 0
        self._num_rounds = 0
        self._rounds: deque[_Round] = deque()
        self._vain = 0
        self._unwaited = 0
        self._outcomes: Counter[RemoteOutcome] = Counter()
        self._seconds: list[float] = []
        self._reported: bool | None = None

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        connection = self._link.connection()
        if connection is not self._connection:  # a new one knows no sequence
            self._start_over(connection)
        if connection is None:
            self._report()
            return [None] * len(sequences)
        try:
            self._take(connection.receive())
            self._ask(connection, sequences, limits)
            self._wait(connection, sequences)
        except (ConnectionLost, ProtocolError) as error:
            self._lose(error)
        drafts = [self._draft(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]
        self._report()
        return drafts

    def forget(self, sequence: SequenceView) -> None:
        """Send the server the last tokens, from which it may learn, and the end."""
        known = self._sequences.pop(sequence.key, None)
        if known is None or self._connection is None:
            return
        del self._by_number[known.number]
        self._num_reserved -= known.num_reserved
        known.ahead.end()
        try:
            self._connection.send(_extension(known, sequence) + FROM_ENGINE.encode(Forget(known.number)))
        except ConnectionLost as error:
            self._lose(error)

    def close(self) -> None:
        self._link.close()

    def _lose(self, reason: Exception) -> None:
        self._link.lose(reason)
        self._start_over(None)

    def _start_over(self, connection: Connection | None) -> None:
        self._outcomes["failed"] += sum(len(sent.sequences) for sent in self._rounds)
        for known in self._sequences.values():
            known.ahead.end()
        self._rounds.clear()
        self._sequences.clear()
        self._by_number.clear()
        self._num_reserved = 0
        self._connection = connection

    def _ask(self, connection: Connection, sequences: Sequence[SequenceView], limits: Sequence[int]) -> None:
        """Send what is new of the sequences that have too little ahead, and ask for drafts."""
        if self._rounds and self._clock() - self._rounds[0].sent_at > SILENT_S:
            raise ConnectionLost(f"no answer for {SILENT_S:g} s")
        frames = bytearray()
        wishes: list[tuple[int, int]] = []
        for sequence, limit in zip(sequences, limits, strict=True):
            known = self._sequences.get(sequence.key) or self._open(connection.terms, sequence, frames)
            if known is None or not known.is_due(len(sequence.tokens)):
                continue
            left = known.ahead.get(sequence.tokens)
            if left is None or left.depth < self._settings.ahead:
                frames += _extension(known, sequence)
                known.num_asked = known.num_sent
                known.num_vain += 1
                wishes.append((known.number, min(limit + self._settings.ahead, connection.terms.most_draft_tokens)))
        if wishes:
            self._num_rounds += 1
            frames += FROM_ENGINE.encode(DraftCall(self._num_rounds, tuple(wishes)))
            self._rounds.append(_Round(self._num_rounds, self._clock(), tuple(number for number, _ in wishes)))
        connection.send(bytes(frames))

    def _open(self, terms: ProposeLimits, sequence: SequenceView, frames: bytearray) -> _OpenSequence | None:
        """Open a sequence at the server; None if it has no room for it."""
        num_reserved = max(len(sequence.tokens), sequence.num_prompt_tokens + sequence.params.max_tokens)
        is_full = len(self._sequences) >= terms.most_sequences or self._num_reserved + num_reserved > terms.most_tokens
        if is_full:
            return None
        self._num_opened += 1
        known = _OpenSequence(self._num_opened, num_reserved, DraftsAhead(self._outcomes))
        self._sequences[sequence.key] = self._by_number[known.number] = known
        self._num_reserved += num_reserved
        params = sequence.params
        frames += FROM_ENGINE.encode(
            Open(
                known.number,
                scope_of(self._key, sequence.cache_salt),
                sequence.num_prompt_tokens,
                params.temperature,
                params.nucleus,
                params.top_k,
                sequence.noise_key,
            )
        )
        return known

    def _wait(self, connection: Connection, sequences: Sequence[SequenceView]) -> None:
        """Wait for answers while a sequence has no draft; after useless waits, skip some rounds."""
        if self.free or not self._rounds or not self._lacks(sequences):
            return
        if self._unwaited:
            self._unwaited -= 1
            return
        end = self._clock() + self._settings.wait_s
        while self._rounds and self._lacks(sequences) and (left_s := end - self._clock()) > 0.0:
            self._take(connection.receive(left_s))
        self._vain = self._vain + 1 if self._rounds else 0
        self._unwaited = min(_LONGEST_BACKOFF, 1 << min(self._vain, 10)) if self._vain else 0

    def _lacks(self, sequences: Iterable[SequenceView]) -> bool:
        known = ((self._sequences.get(sequence.key), sequence) for sequence in sequences)
        return any(opened is not None and opened.ahead.get(sequence.tokens) is None for opened, sequence in known)

    def _take(self, answers: Iterable[Drafts]) -> None:
        for answer in answers:
            answered = [sent for sent in self._rounds if sent.number <= answer.round]
            if not answered or answered[-1].number != answer.round:
                raise ProtocolError(f"an answer to round {answer.round}, which waits for none")
            requested = Counter(number for sent in answered for number in sent.sequences)
            drafts = {sent.number: sent for sent in answer.drafts}
            if len(drafts) < len(answer.drafts) or not drafts.keys() <= requested.keys():
                raise ProtocolError("drafts that were not asked for")
            for sent in answer.drafts:
                self._check(sent)
            for _ in answered:
                self._rounds.popleft()
            self._seconds.append(self._clock() - answered[-1].sent_at)
            self._outcomes["late"] += requested.total() - len(requested)  # the server went on to a later round
            for number in requested:
                self._arrive(number, drafts.get(number))

    def _arrive(self, number: int, sent: SentDraft | None) -> None:
        known = self._by_number.get(number)
        if sent is None:
            self._outcomes["empty"] += 1
        elif known is None:  # it has ended
            self._outcomes["late"] += 1
        else:
            draft = sent.draft
            bucket, *buckets = (min(max(0, each), _MOST_BUCKETS - 1) for each in (draft.bucket, *draft.buckets))
            own = replace(draft, proposer=self.name, bucket=bucket, buckets=tuple(buckets), sources=())
            known.ahead.put(sent.prefix, own)

    def _check(self, sent: SentDraft) -> None:
        """Raise `ProtocolError` for an invalid draft, also one for an unknown sequence."""
        draft, known = sent.draft, self._by_number.get(sent.number)
        fault = draft.fault(self._vocab_size, MOST_NODES)
        if fault is None and draft.survival:
            above = ((1.0 if up == ROOT else draft.survival[up]) for up in draft.parents)
            if any(alive > most for alive, most in zip(draft.survival, above, strict=True)):
                fault = "a node survives more often than its parent"
        if fault is None and known is not None and sent.prefix > known.num_sent:
            fault = f"it follows {sent.prefix} tokens of {known.num_sent}"
        if fault is not None:
            raise ProtocolError(f"draft: {fault}")

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        known = self._sequences.get(sequence.key)
        draft = known.ahead.get(sequence.tokens) if known is not None else None
        if known is None or draft is None or limit < 1:
            return None
        known.ahead.use()
        known.num_vain = 0
        return draft.likeliest(limit)

    def _report(self) -> None:
        is_connected = self._connection is not None
        if self._observe is not None and (self._outcomes or self._seconds or is_connected != self._reported):
            outcomes = {outcome: number for outcome, number in self._outcomes.items() if number}
            self._observe(RemoteRounds(is_connected, outcomes, tuple(self._seconds)))
            self._reported = is_connected
        self._outcomes.clear()
        self._seconds.clear()


def _extension(known: _OpenSequence, sequence: SequenceView) -> bytes:
    """Return the frame of the tokens that the server does not know yet, b"" without any; it knows them then."""
    tokens = tuple(sequence.tokens[known.num_sent :])
    known.num_sent += len(tokens)
    return FROM_ENGINE.encode(Extend(known.number, tokens)) if tokens else b""


def scope_of(key: SharedKey, cache_salt: str) -> bytes:
    """Return what stands for a cache salt outside the engine."""
    return key.digest("scope", cache_salt.encode("utf-8", "surrogatepass"))[:SCOPE_BYTES]
