"""Runs one proposer for the engines that connect: their sequences, rounds and drafts over the protocol of `messages`.

What arrives while the proposer works waits; then all of it is taken in, and all engines' sequences that drafts are
wanted for are one call. Of several rounds of one engine only the last is drafted: the others came too late.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count

import structlog

from prolepsis.core.codec import FrameReader, ProtocolError
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.handshake import HANDSHAKE_S, MOST_BYTES, SharedKey, Steps, listening, refusal
from prolepsis.core.network import end_unacknowledged
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.containment import ContainedProposer
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceFields
from prolepsis.engine.drafting.remote.messages import (
    FROM_ENGINE,
    FROM_SERVER,
    MOST_FROM_ENGINE,
    MOST_NODES,
    PROTOCOL,
    TERMS,
    DraftCall,
    Drafts,
    Extend,
    Forget,
    FromEngine,
    Open,
    ProposeLimits,
    SentDraft,
)

log = structlog.get_logger(__name__)

_MOST_WAITING = 4096
_MOST_WAITING_BYTES = 16 << 20
"""Messages of one engine that wait for the proposer, and their bytes; beyond, nothing more is read of it."""
_MOST_UNSENT = 16 << 20  # bytes of answers that an engine does not read: beyond, it is given up
_LEAVE_S = 5.0  # longest wait for an engine that is given up to read what was sent
_OTHER_VOCABULARY = "the engine's tokenizer has other tokens or ids than this server's model"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The proposer of a server, and the vocabulary that it drafts for."""

    proposer: Proposer
    vocabulary: bytes  # digest of the tokens and their ids (`vocabulary_digest`)
    vocab_size: int  # token ids are below it; a sequence with others gets no drafts


@dataclass(frozen=True, slots=True)
class ServingLimits:
    most_engines: int = 64  # engines at once, which have proven that they have the key
    terms: ProposeLimits = field(default_factory=ProposeLimits)  # limits that each engine gets
    most_strangers: int = 64  # connections at once in the handshake; beyond, the oldest is closed for a new one


@dataclass(slots=True, kw_only=True)
class EngineSequence(SequenceFields):
    """A sequence of an engine, as the proposer sees it."""

    number: int  # number that its engine gave it
    is_unfit: bool = False  # it has tokens that the proposer does not know
    used_s: int = 0  # time of its last round, of one that came by a queue

    @classmethod
    def of(cls, engine: object, message: Open) -> "EngineSequence":
        """Return the sequence that an engine opens; raises `ProtocolError` for parameters that none may have."""
        params = SamplingParams(temperature=message.temperature, top_p=message.top_p, top_k=message.top_k)
        try:
            params.validate(0)
        except InvalidParameter as error:
            raise ProtocolError(str(error)) from error
        key, scope = f"{engine}/{message.number}", message.scope.hex()
        return cls(key, [], message.num_prompt_tokens, params, message.noise_key, scope, number=message.number)


class ProposeServer:
    """Serves engines that have the key. A costly proposer works in a thread, a free one on the event loop."""

    def __init__(self, model: ServedModel, key: SharedKey, limits: ServingLimits | None = None) -> None:
        self.model = model
        self.key = key
        self.limits = limits or ServingLimits()
        assert self.limits.terms.most_draft_tokens <= MOST_NODES, "an engine takes no larger drafts"
        self.proposer = ContainedProposer(model.proposer, model.vocab_size)
        self.engines: set[_Engine] = set()
        self.strangers: dict[_Engine, None] = {}  # connections in the handshake, the oldest first
        self.numbers = count()
        self.arrived = asyncio.Event()
        self.gone: deque[EngineSequence] = deque()
        """Sequences of engines that have left: the proposer forgets them between two calls."""
        self._worker = None if self.proposer.free else ThreadPoolExecutor(1, thread_name_prefix="proposer")

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> asyncio.Server:
        """Begin to listen; raises `OSError`. Nothing is drafted until `run`."""
        loop = asyncio.get_running_loop()
        tls_s = None if tls is None else HANDSHAKE_S
        return await loop.create_server(lambda: _Engine(self), host, port, ssl=tls, ssl_handshake_timeout=tls_s)

    async def run(self) -> None:
        """Draft until cancelled."""
        try:
            while True:
                await self.arrived.wait()
                self.arrived.clear()
                while self.gone:
                    self.proposer.forget(self.gone.popleft())
                taken = [(engine, engine.take_in()) for engine in list(self.engines)]
                rounds = [(engine, wanted) for engine, wanted in taken if wanted is not None]
                if rounds:
                    drafts = iter(await self.drafts([wish for _, wanted in rounds for wish in wanted]))
                    for engine, wanted in rounds:
                        engine.answer([(sequence, next(drafts)) for sequence, _ in wanted])
        finally:
            for engine in [*self.engines, *self.strangers]:
                engine.abort()
            if self._worker is not None:
                self._worker.shutdown(wait=True)

    async def drafts(self, wishes: Sequence[tuple[EngineSequence, int]]) -> Sequence[Draft | None]:
        """Return a draft or None for each sequence, with the most nodes that it may have."""
        fit = [(sequence, most) for sequence, most in wishes if not sequence.is_unfit]
        if not fit or self.proposer.backs_off():
            return [None] * len(wishes)
        sequences, limits = [sequence for sequence, _ in fit], [most for _, most in fit]
        if self._worker is None:
            made = self.proposer.propose(sequences, limits)
        else:
            loop = asyncio.get_running_loop()
            made = await loop.run_in_executor(self._worker, self.proposer.propose, sequences, limits)
        drafts = {sequence.key: draft for sequence, draft in zip(sequences, made, strict=True)}
        return [drafts.get(sequence.key) for sequence, _ in wishes]


class _Engine(asyncio.Protocol):
    def __init__(self, server: ProposeServer) -> None:
        self._server = server
        self._number = next(server.numbers)
        self._reader = FrameReader(MOST_BYTES)
        self._handshake: Steps | None = listening(server.key, PROTOCOL, self._terms)
        next(self._handshake)
        self._waiting: deque[FromEngine] = deque()
        self._waiting_bytes = 0
        self._sequences: dict[int, EngineSequence] = {}
        self._num_tokens: dict[int, int] = {}  # tokens of each sequence, those that wait included
        self._total_tokens = 0
        self._last_opened = 0
        self._round = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        end_unacknowledged(connection)
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.leave, "no handshake in time")
        strangers = self._server.strangers
        if len(strangers) >= self._server.limits.most_strangers:
            next(iter(strangers)).leave("too many connections in the handshake")
        strangers[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._server.engines.discard(self)
        self._server.strangers.pop(self, None)
        self._server.gone += self._sequences.values()
        self._sequences.clear()
        self._server.arrived.set()
        if self._handshake is None:
            log.info("engine_left", engine=self._number)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._reader.feed(data):
                if self._handshake is None:
                    self._arrive(FROM_ENGINE.decode(body), len(body))
                else:
                    self._shake_hands(self._handshake, body)
        except (ProtocolError, PermissionError) as error:
            self.leave(str(error))
        if self._waiting:
            self._server.arrived.set()
        if len(self._waiting) > _MOST_WAITING or self._waiting_bytes > _MOST_WAITING_BYTES:
            self._transport.pause_reading()

    def abort(self) -> None:
        self._transport.abort()

    def leave(self, reason: str) -> None:
        log.warning("engine_refused", engine=self._number, reason=reason)
        if self._handshake is not None:
            self._transport.write(refusal(reason))
        self._server.strangers.pop(self, None)
        self._transport.close()
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(_LEAVE_S, self.abort)

    def take_in(self) -> list[tuple[EngineSequence, int]] | None:
        """Process all messages that wait, between two calls of the proposer.

        Return the sequences to draft for, each with the most nodes of its draft; None if nothing was asked for.
        """
        wishes: dict[int, int] | None = None
        self._waiting_bytes = 0
        try:
            while self._waiting:
                message = self._waiting.popleft()
                if isinstance(message, DraftCall):
                    self._round, wishes = message.round, (wishes or {}) | dict(message.wishes)
                else:
                    self._change(message)
        except ProtocolError as error:
            self._waiting.clear()
            self.leave(str(error))
            return None
        self._transport.resume_reading()
        if wishes is None:
            return None
        most = self._server.limits.terms.most_draft_tokens
        known = ((self._sequences[number], wish) for number, wish in wishes.items() if number in self._sequences)
        return [(sequence, min(max(1, wish), most)) for sequence, wish in known]

    def answer(self, drafts: Sequence[tuple[EngineSequence, Draft | None]]) -> None:
        """Send the drafts of the sequences that `take_in` returned; they have not grown since."""
        if self._transport.is_closing():
            return
        pairs = ((sequence, draft) for sequence, draft in drafts if draft is not None)
        sent = tuple(SentDraft(sequence.number, len(sequence.tokens), draft) for sequence, draft in pairs)
        self._transport.write(FROM_SERVER.encode(Drafts(self._round, sent)))
        if self._transport.get_write_buffer_size() > _MOST_UNSENT:
            log.warning("engine_does_not_read", engine=self._number)
            self.abort()

    def _shake_hands(self, handshake: Steps, body: bytes) -> None:
        try:
            self._transport.write(handshake.send(body))
        except StopIteration as end:
            welcome, _ = end.value
            self._handshake = None
            self._reader.most = MOST_FROM_ENGINE
            self._timer.cancel()
            self._server.strangers.pop(self, None)
            self._server.engines.add(self)
            self._transport.write(welcome)
            log.info("engine_connected", engine=self._number)

    def _terms(self, vocabulary: bytes) -> bytes:
        """Return the terms for an engine that has the key; raises `ProtocolError` to refuse it."""
        limits = self._server.limits
        if vocabulary != self._server.model.vocabulary:
            raise ProtocolError(_OTHER_VOCABULARY)
        if len(self._server.engines) >= limits.most_engines:
            raise ProtocolError(f"{limits.most_engines} engines are connected already")
        return TERMS.encode_body(limits.terms)

    def _arrive(self, message: FromEngine, num_bytes: int) -> None:
        """Have a message wait for the proposer; raises `ProtocolError` for more tokens than the engine may have."""
        most = self._server.limits.terms.most_tokens
        match message:
            case Extend(number, tokens):
                self._num_tokens[number] = self._num_tokens.get(number, 0) + len(tokens)
                self._total_tokens += len(tokens)
            case Forget(number):
                self._total_tokens -= self._num_tokens.pop(number, 0)
        if self._total_tokens > most:
            raise ProtocolError(f"more than {most} tokens")
        self._waiting.append(message)
        self._waiting_bytes += num_bytes

    def _change(self, message: FromEngine) -> None:
        match message:
            case Open():
                self._open(message)
            case Extend():
                sequence = self._found(message.number)
                sequence.tokens += message.tokens
                sequence.is_unfit |= max(message.tokens, default=0) >= self._server.model.vocab_size
            case Forget():
                sequence = self._found(message.number)
                del self._sequences[message.number]
                self._server.proposer.forget(sequence)

    def _open(self, message: Open) -> None:
        most = self._server.limits.terms.most_sequences
        if len(self._sequences) >= most:
            raise ProtocolError(f"more than {most} sequences")
        if message.number <= self._last_opened:
            raise ProtocolError(f"sequence {message.number} after {self._last_opened}; allowed: rising numbers")
        self._sequences[message.number] = EngineSequence.of(self._number, message)
        self._last_opened = message.number

    def _found(self, number: int) -> EngineSequence:
        if number not in self._sequences:
            raise ProtocolError(f"sequence {number}, which is not open")
        return self._sequences[number]
